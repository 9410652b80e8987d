//! What an archive is checked against besides itself, and how large things may be.

use std::io::Write as _;

use invigil_journal::archive::{
    ArchiveError as E, Expected, Limits, Member, PackError, Packing, Verified, pack, verify,
};
use invigil_schema::{Digest, RunId};

use crate::packing::assert_nothing_left;
use crate::surgery::*;
use crate::{Plain, check, check_with, good, journal};

fn limited(limits: Limits) -> Result<Verified, E> {
    let expected = Expected {
        limits,
        ..Expected::default()
    };
    check_with(good(), &expected)
}

#[test]
fn a_good_archive_is_accepted_and_described() {
    let verified = check(good()).unwrap();
    assert!(verified.recomputed);
    assert_eq!(verified.sha256, sha(good()));
    assert_eq!(verified.bytes, good().len() as u64);
    assert_eq!(verified.decoded, untar(good()).len() as u64);
    let paths: Vec<&str> = verified.manifest.members.iter().map(|e| &*e.path).collect();
    assert_eq!(paths, Member::ALL.map(Member::path));
    assert_eq!(verified.manifest.head.seq, 13);
    let policy = verified.manifest.entry(Member::PolicyLayer).unwrap();
    assert_eq!(
        (policy.size, policy.sha256),
        (0, sha(b"")),
        "an empty layer is there"
    );
}

#[test]
fn the_right_digest_and_run_are_accepted_and_others_refused() {
    let ask = |sha256: Option<Digest>, run_id: Option<&str>| {
        let expected = Expected {
            sha256,
            run_id: run_id.map(|id| RunId::new(id).unwrap()),
            ..Expected::default()
        };
        check_with(good(), &expected)
    };
    assert!(ask(Some(sha(good())), Some("run_golden")).is_ok());
    assert!(matches!(
        ask(Some(sha(b"")), None),
        Err(E::FileDigest { .. })
    ));
    assert!(matches!(
        ask(None, Some("run_other")),
        Err(E::WrongRun { .. })
    ));
}

#[test]
fn limits_are_kept_by_both_sides() {
    let size = good().len() as u64;
    let decoded = untar(good()).len() as u64;
    let limits = Limits::default();
    assert_eq!((limits.source, limits.decoded), (1 << 30, 8 << 30));
    assert_eq!(limits.document, 64 << 20);
    assert!(
        limited(Limits {
            source: size,
            decoded,
            ..limits
        })
        .is_ok()
    );
    let refused = limited(Limits {
        source: size - 1,
        ..limits
    });
    assert!(
        matches!(refused, Err(E::SourceTooLarge { .. })),
        "{refused:?}"
    );
    let refused = limited(Limits {
        decoded: decoded - 1,
        ..limits
    });
    assert!(
        matches!(refused, Err(E::DecodedTooLarge { .. })),
        "{refused:?}"
    );
    let refused = limited(Limits {
        document: 100,
        ..limits
    });
    assert!(
        matches!(refused, Err(E::DocumentTooLarge { .. })),
        "{refused:?}"
    );

    let directory = tempfile::tempdir().unwrap();
    let run = journal(directory.path(), 12);
    for limits in [
        Limits {
            source: 500,
            ..limits
        },
        Limits {
            decoded: 2000,
            ..limits
        },
        Limits {
            document: 20,
            ..limits
        },
    ] {
        let packing = Packing {
            limits,
            ..Packing::default()
        };
        let target = directory.path().join("limited.tar.gz");
        let packed = pack(run.storage(), &target, &mut Plain::default(), &packing);
        let refused = matches!(packed, Err(PackError::Unfit(_) | PackError::Views(_)));
        assert!(refused, "{packed:?}");
        assert_nothing_left(directory.path());
    }
}

#[test]
fn a_bomb_stops_at_the_limit() {
    // It claims 8 GiB - 1 and would deliver 64 MiB of zeros.
    let claims = with(|parts| {
        parts[1].set(124, b"77777777777");
        parts[1].content = vec![0; 64 << 20];
    });
    assert!(claims.len() < 200_000);
    assert!(matches!(check(&claims), Err(E::DecodedTooLarge { .. })));
    let honest = forged(Member::DiffPatch, |_| vec![0; 64 << 20]);
    let expected = Expected {
        limits: Limits {
            decoded: 1 << 20,
            ..Limits::default()
        },
        ..Expected::default()
    };
    let refused = check_with(&honest, &expected);
    assert!(matches!(refused, Err(E::DecodedTooLarge { limit }) if limit == 1 << 20));
    let document = forged(Member::Contract, |_| vec![b' '; (64 << 20) + 1]);
    assert!(matches!(check(&document), Err(E::DocumentTooLarge { .. })));
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let none = directory.path().join("none");
    for path in [directory.path(), &none] {
        let refused = verify(path, &Expected::default(), None);
        assert!(matches!(refused, Err(E::Io { .. })), "{refused:?}");
    }
}

#[test]
fn without_views_the_derived_members_are_not_vouched_for() {
    let forged = forged(Member::CapabilitySurface, |text| replaced(text, "14", "13"));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&forged).unwrap();
    let verified = verify(file.path(), &Expected::default(), None).unwrap();
    assert!(!verified.recomputed);
}
