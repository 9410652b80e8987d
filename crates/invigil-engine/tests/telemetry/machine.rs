//! A recorded machine: one text with the files of its `/proc` and `/sys`, laid out in a directory.

use std::fs;
use std::path::{Path, PathBuf};

use invigil_engine::Sampler;
use invigil_schema::Telemetry;

pub(crate) struct Machine(tempfile::TempDir);

impl Machine {
    /// From `tests/telemetry/machines/NAME.txt`, in which a line `-- path --` begins a file.
    pub(crate) fn recorded(name: &str) -> Machine {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/telemetry/machines");
        let text = fs::read_to_string(folder.join(format!("{name}.txt"))).unwrap();
        let machine = Machine(tempfile::tempdir().unwrap());
        fs::create_dir(machine.path("sys")).unwrap();
        for file in text.split("\n-- ").skip(1) {
            let (path, content) = file.split_once(" --\n").unwrap();
            machine.write(path, format!("{content}\n"));
        }
        machine
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.path(path)).unwrap();
    }

    /// A process with this line behind its name, and this command.
    pub(crate) fn process(&self, pid: u32, name: &[u8], state: char, rest: &str, command: &[u8]) {
        let mut stat = format!("{pid} (").into_bytes();
        stat.extend_from_slice(name);
        stat.extend_from_slice(format!(") {state} 1 1 1 0 -1 64 0 0 0 0 {rest}\n").as_bytes());
        self.write(&format!("proc/{pid}/stat"), stat);
        self.write(&format!("proc/{pid}/cmdline"), command);
    }

    pub(crate) fn sampler(&self) -> Sampler {
        Sampler::open_at(&self.path("proc"), &self.path("sys")).unwrap()
    }

    pub(crate) fn figures(&self) -> Telemetry {
        self.sampler().machine(self.0.path()).unwrap()
    }
}
