//! Verify against SHA-256 alone.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use invigil_journal::{Expected, Options};
use sha2::{Digest as _, Sha256};

use super::report::{Goal, Table};
use super::rounds::{interleaved, timed};
use super::sample::{Scratch, on_one_core, storage, write};
use crate::Result;

const RECORDS: usize = 600_000;

pub(super) fn measure(scratch: &Scratch, quick: bool) -> Result<Table> {
    println!("verify …");
    let (rounds, records) = if quick {
        (3, RECORDS / 10)
    } else {
        (15, RECORDS)
    };
    let folder = scratch.folder("verify")?;
    write(&folder, records, Options::default())?;
    let segments = segments(&folder)?;
    let mut bytes = Vec::new();
    for segment in &segments {
        bytes.extend(fs::read(segment)?);
    }
    let mut verify = |_| {
        timed(|| {
            let report = invigil_journal::verify(storage(&folder), &Expected::default())?;
            assert_eq!(report.bytes, bytes.len() as u64, "everything is checked");
            Ok(())
        })
    };
    let mut in_memory = |_| {
        timed(|| {
            std::hint::black_box(Sha256::digest(&bytes));
            Ok(())
        })
    };
    let mut from_files = |_| timed(|| segments.iter().try_for_each(|segment| hash_file(segment)));
    let [verify, in_memory, from_files] =
        on_one_core(|| interleaved(rounds, [&mut verify, &mut in_memory, &mut from_files]))?;
    let size = bytes.len() as f64;
    let rate = |seconds| size / seconds / 1e6;
    let (to_memory, to_files) = (verify.speed_of(&in_memory), verify.speed_of(&from_files));
    let mut table = Table::new("Verify", &["what", "reached", "goal"]);
    table.note(format!(
        "{records} records, {} MB in {} segments, read from the page cache on one core. SHA-256 is that of the crate `sha2`, \
         the same that the journal uses, in one pass over the same bytes.",
        (size / 1e6).round(),
        segments.len()
    ));
    table.row([
        "verify, MB/s".into(),
        verify.map(rate).to_string(),
        String::new(),
    ]);
    table.row([
        "SHA-256 of the bytes in memory, MB/s".into(),
        in_memory.map(rate).to_string(),
        String::new(),
    ]);
    table.row([
        "SHA-256 of the files, MB/s".into(),
        from_files.map(rate).to_string(),
        String::new(),
    ]);
    table.row([
        "verify ÷ SHA-256 in memory".into(),
        to_memory.to_string(),
        Goal::AtLeast(0.6).verdict(to_memory.median()),
    ]);
    table.row([
        "verify ÷ SHA-256 of the files".into(),
        to_files.to_string(),
        Goal::AtLeast(0.6).verdict(to_files.median()),
    ]);
    fs::remove_dir_all(folder)?;
    Ok(table)
}

fn segments(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        segments.extend(
            path.extension()
                .is_some_and(|end| end == "ndjson")
                .then_some(path),
        );
    }
    segments.sort();
    Ok(segments)
}

fn hash_file(path: &Path) -> Result {
    let mut file = File::open(path)?;
    let mut chunk = vec![0; 256 * 1024];
    let mut hash = Sha256::new();
    loop {
        let filled = file.read(&mut chunk)?;
        if filled == 0 {
            std::hint::black_box(hash.finalize());
            return Ok(());
        }
        hash.update(&chunk[..filled]);
    }
}
