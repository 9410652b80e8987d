//! Evidence that was packed once keeps verifying: its journal, its form, and the views computed from it anew.

use std::path::{Path, PathBuf};

use invigil_audit::{Ignore, Verdict};
use invigil_engine::{Comparable, verify_archive};
use invigil_journal::archive::Expected;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/run-v1.tar.gz")
}

#[test]
fn the_golden_run_keeps_verifying() {
    let verified = verify_archive(&golden(), &Expected::default()).unwrap();
    assert_eq!(verified.manifest.run_id.as_str(), "golden");
    assert!(verified.recomputed);
}

#[test]
fn what_it_did_is_still_read_from_it() {
    let run = Comparable::of_archive(&golden()).unwrap();
    let paths: Vec<String> = run
        .surface
        .filesystem_paths
        .iter()
        .map(|entry| entry.path.to_string_lossy().into_owned())
        .collect();
    assert!(paths.contains(&"/tmp/golden/made".to_owned()), "{paths:?}");
    assert_eq!(run.surface.tools.len(), 1);
    let same = run.diff(&run, &Ignore::nothing());
    assert_eq!(same.verdict, Verdict::Same);
}
