//! Packing, what was packed once, and a check without Invigil.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use invigil_journal::archive::{
    Attachment, Derived, Expected, Member, PackError, Packing, ViewError, Views, pack, verify,
};
use invigil_journal::{Record, RunRef};

use crate::surgery::*;
use crate::{ATTACHED, Plain, good, journal, pack_run};

pub(crate) fn assert_nothing_left(directory: &Path) {
    let left: Vec<_> = directory.read_dir().unwrap().flatten().collect();
    let temporary = |entry: &fs::DirEntry| entry.file_name().as_encoded_bytes().ends_with(b".tmp");
    assert!(!left.iter().any(temporary), "{left:?}");
}

#[test]
fn the_same_journal_gives_the_same_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let run = journal(directory.path(), 12);
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));
    let packed = pack_run(&run, &one).unwrap();
    assert_eq!(pack_run(&run, &two).unwrap(), packed);
    assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
    assert_eq!(
        fs::read(&one).unwrap(),
        good(),
        "nor does it matter where it lies"
    );
    assert_eq!(
        (packed.sha256, packed.bytes),
        (sha(good()), good().len() as u64)
    );
    assert_nothing_left(directory.path());
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(one.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_file_is_replaced_only_if_asked() {
    let directory = tempfile::tempdir().unwrap();
    let run = journal(directory.path(), 1);
    let target = directory.path().join("there");
    fs::write(&target, "mine").unwrap();
    assert!(matches!(pack_run(&run, &target), Err(PackError::Exists(path)) if path == target));
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    let packing = Packing {
        overwrite: true,
        ..Packing::default()
    };
    let packed = pack(run.storage(), &target, &mut Plain::default(), &packing).unwrap();
    assert_eq!(sha(&fs::read(&target).unwrap()), packed.sha256);
    assert_eq!(
        packed.manifest.members.len(),
        8,
        "what is not attached is not there"
    );
    assert_nothing_left(directory.path());
}

#[test]
fn what_would_be_refused_is_not_packed() {
    struct Bad(Member, &'static [u8]);
    impl Views for Bad {
        fn record(&mut self, _: Record<'_>, _: &mut Derived) -> Result<(), ViewError> {
            Ok(())
        }
        fn finish(&mut self, out: &mut Derived) -> Result<(), ViewError> {
            Plain::default().finish(out)?;
            out.write(self.0, self.1)
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let run = journal(directory.path(), 1);
    let target = directory.path().join("out");
    for (member, bytes) in [
        (Member::SdkLayer, &b"{\"a\":1,\"a\":2}\n"[..]),
        (Member::SdkLayer, b"no newline"),
        (Member::CapabilitySurface, b"{}"),
        (Member::Journal, b"{}\n"),
        (Member::Contract, b"{}\n"),
    ] {
        let packing = Packing::default();
        let packed = pack(run.storage(), &target, &mut Bad(member, bytes), &packing);
        assert!(
            matches!(packed, Err(PackError::Views(_))),
            "{member}: {packed:?}"
        );
    }
    for attachments in [
        &[Attachment {
            member: Member::Journal,
            bytes: b"",
        }][..],
        &[ATTACHED[0], ATTACHED[0]],
        &[Attachment {
            member: Member::Contract,
            bytes: b"{\"a\":1,\"a\":2}",
        }],
    ] {
        let packing = Packing {
            attachments,
            ..Packing::default()
        };
        let packed = pack(run.storage(), &target, &mut Plain::default(), &packing);
        let refused = matches!(packed, Err(PackError::Attachment(_) | PackError::Unfit(_)));
        assert!(refused, "{packed:?}");
    }
    assert!(!target.exists());
    assert_nothing_left(directory.path());
}

#[test]
fn a_damaged_journal_is_not_packed() {
    let directory = tempfile::tempdir().unwrap();
    let run = journal(directory.path(), 12);
    let first = run.directory().join("journal.ndjson");
    let changed = replaced(fs::read(&first).unwrap(), "\"n\":1", "\"n\":9");
    fs::write(&first, changed).unwrap();
    let packed = pack_run(&run, &directory.path().join("out"));
    assert!(matches!(packed, Err(PackError::Journal(_))), "{packed:?}");
    assert_nothing_left(directory.path());
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/archive-v1.tar.gz")
}

/// Run with `INVIGIL_BLESS_ARCHIVE=1` to write it anew, for a new version of the format only.
#[test]
fn the_golden_archive_verifies_and_packs_to_the_same_bytes() {
    if std::env::var_os("INVIGIL_BLESS_ARCHIVE").is_some() {
        fs::write(golden(), good()).unwrap();
    }
    let bytes = fs::read(golden()).unwrap();
    let verified = verify(&golden(), &Expected::default(), Some(&mut Plain::default())).unwrap();
    assert_eq!(verified.manifest.run_id.as_str(), "run_golden");
    let directory = tempfile::tempdir().unwrap();
    let parts = parts(&bytes);
    let journal = &parts[at(&parts, Member::Journal)].content;
    fs::write(directory.path().join("journal.ndjson"), journal).unwrap();
    let run = RunRef::at(directory.path()).unwrap();
    let again = directory.path().join("again.tar.gz");
    pack_run(&run, &again).unwrap();
    assert!(
        fs::read(again).unwrap() == bytes,
        "other bytes than when it was packed first"
    );
}

#[test]
fn the_snippet_in_the_documentation_checks_an_archive() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/archive-format.md");
    let page = fs::read_to_string(page).unwrap();
    let (_, rest) = page.split_once("```python\n").unwrap();
    let (script, _) = rest.split_once("```").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let run = |archive: &[u8]| {
        let path = directory.path().join("archive.tar.gz");
        fs::write(&path, archive).unwrap();
        let python = Command::new("python3")
            .arg("-c")
            .arg(script)
            .arg(&path)
            .output();
        python.ok().map(|output| {
            let text = [output.stdout, output.stderr].concat();
            (output.status.success(), String::from_utf8(text).unwrap())
        })
    };
    let Some((success, text)) = run(good()) else {
        eprintln!("skipped: there is no python3");
        return;
    };
    assert!(
        success && text.starts_with("ok: run_golden, 14 records"),
        "{text}"
    );
    let changed = forged(Member::Journal, |text| replaced(text, "\"n\":4", "\"n\":5"));
    let (success, text) = run(&changed).unwrap();
    assert!(!success && text.contains("seq 5"), "{text}");
    let (success, text) = run(&with(|parts| parts[3].content[0] ^= 1)).unwrap();
    assert!(
        !success && text.contains("correlation-report.json"),
        "{text}"
    );
    let (success, _) = run(&with(|parts| drop(parts.pop()))).unwrap();
    assert!(!success);
}
