//! Archives: the same journal gives the same bytes, and every way to tamper with one is refused by its own name.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod limits;
mod packing;
mod surgery;
mod tampering;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use invigil_journal::archive::{
    ArchiveError, Attachment, Derived, Expected, Member, PackError, Packed, Packing, Verified,
    ViewError, Views, pack, verify,
};
use invigil_journal::{Clock, Options, Record, RunRef, Store};
use invigil_schema::{Event, Origin, RunFinished, RunId, Stamp, Timestamp};
use serde_json::value::RawValue;

struct Fixed;

impl Clock for Fixed {
    fn now(&self) -> Stamp {
        let time = Timestamp::from_micros(1_794_777_481_123_456);
        Stamp { time, mono: 7 }
    }
}

/// Stands for the real views: a line for each record of a layer, and counts.
#[derive(Default)]
struct Plain {
    records: u64,
    finished: bool,
}

impl Views for Plain {
    fn record(&mut self, record: Record<'_>, out: &mut Derived) -> Result<(), ViewError> {
        self.records += 1;
        let envelope = record.envelope()?;
        let member = match (envelope.origin, &*envelope.kind) {
            (Origin::Kernel, _) => Member::KernelLayer,
            (Origin::Sdk, _) => Member::SdkLayer,
            (_, kind) if kind.starts_with("run_") => Member::Events,
            _ => return Ok(()),
        };
        out.write(member, record.line())?;
        out.write(member, b"\n")
    }

    fn finish(&mut self, out: &mut Derived) -> Result<(), ViewError> {
        self.finished = true;
        let count = format!("{{\"records\":{}}}\n", self.records);
        out.write(Member::CapabilitySurface, count.as_bytes())?;
        out.write(
            Member::CorrelationReport,
            b"{\"status\":\"not_applicable\"}\n",
        )?;
        out.write(
            Member::ObservationHealth,
            b"{\"kernel_layer\":\"partial\"}\n",
        )
    }
}

fn unknown(data: &str) -> Event {
    Event::Unknown {
        kind: "from_tomorrow".into(),
        data: RawValue::from_string(data.into()).unwrap(),
    }
}

fn journal(home: &Path, records: u64) -> RunRef {
    let run_id = RunId::new("run_golden").unwrap();
    let options = Options {
        segment_bytes: 1024,
        ..Options::default()
    };
    let store = Store::new(home);
    let (run, journal) = store
        .create(&run_id, Arc::new(Fixed), options, "test")
        .unwrap();
    for n in 0..records {
        let origin = [Origin::Kernel, Origin::Sdk, Origin::Runtime][n as usize % 3];
        let event = unknown(&format!("{{\"n\":{n},\"text\":\"über\"}}"));
        journal.append(origin, &event).unwrap().written().unwrap();
    }
    let finished = RunFinished {
        exit_code: Some(0),
        signal: None,
        success: true,
        window_elapsed_ms: 12,
        stopped: None,
        why: None,
    };
    drop(journal.append(Origin::Runtime, &finished.into()));
    journal.close().unwrap();
    run
}

const PATCH: &[u8] = b"--- a\n+++ b\n";
const ATTACHED: &[Attachment<'_>] = &[
    Attachment {
        member: Member::Contract,
        bytes: b"{\"checks\":[]}\n",
    },
    Attachment {
        member: Member::DiffPatch,
        bytes: PATCH,
    },
];

fn pack_run(run: &RunRef, target: &Path) -> Result<Packed, PackError> {
    let packing = Packing {
        attachments: ATTACHED,
        ..Packing::default()
    };
    pack(run.storage(), target, &mut Plain::default(), &packing)
}

fn good() -> &'static [u8] {
    static GOOD: OnceLock<Vec<u8>> = OnceLock::new();
    GOOD.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let run = journal(directory.path(), 12);
        assert!(run.directory().read_dir().unwrap().count() > 4, "segments");
        let target = directory.path().join("good.tar.gz");
        pack_run(&run, &target).unwrap();
        fs::read(target).unwrap()
    })
}

fn check_with(bytes: &[u8], expected: &Expected) -> Result<Verified, ArchiveError> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(bytes).unwrap();
    verify(file.path(), expected, Some(&mut Plain::default()))
}

fn check(bytes: &[u8]) -> Result<Verified, ArchiveError> {
    check_with(bytes, &Expected::default())
}
