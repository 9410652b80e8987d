//! Files that must not load. What a person then sees is kept beside each of them; `INVIGIL_BLESS=1` writes it anew.

use std::fs;
use std::path::Path;

use invigil_policy::{Layer, Policy, Source};
use miette::Diagnostic;

use super::places;

#[test]
fn every_bad_file_says_where_and_what_to_write_instead() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut stale = Vec::new();
    let mut seen = 0;
    let mut entries: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries
        .iter()
        .filter(|path| path.extension().is_some_and(|ext| ext == "toml"))
    {
        seen += 1;
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let source = Source {
            name: name.clone(),
            text: fs::read_to_string(path).unwrap(),
            layer: Layer::User,
        };
        let error = match Policy::load(std::slice::from_ref(&source), &places()) {
            Ok(_) => panic!("{name} loads"),
            Err(error) => error,
        };
        assert_eq!(error.file(), name);
        assert!(
            error.line() >= 1 && error.line() <= source.text.lines().count(),
            "{name}"
        );
        assert!(
            !error.help().is_empty(),
            "{name} does not say what to write instead"
        );
        let label = Diagnostic::labels(&error).unwrap().next().unwrap();
        assert!(label.offset() + label.len() <= source.text.len(), "{name}");
        let report = error.report();
        let kept = path.with_extension("txt");
        if std::env::var_os("INVIGIL_BLESS").is_some() {
            fs::write(&kept, &report).unwrap();
        }
        if fs::read_to_string(&kept).unwrap_or_default() != report {
            stale.push(format!("{name}:\n{report}"));
        }
    }
    assert!(seen >= 40, "{seen}");
    assert!(
        stale.is_empty(),
        "INVIGIL_BLESS=1 cargo test -p invigil-policy\n{}",
        stale.join("\n")
    );
}

#[test]
fn the_name_of_the_bad_one_of_several_files() {
    let source = |name: &str, text: &str| Source {
        name: name.into(),
        text: text.into(),
        layer: Layer::User,
    };
    let files = [
        source("good.toml", "version = 1"),
        source("bad.toml", "version = 1\nx = 1"),
    ];
    let error = Policy::load(&files, &places()).unwrap_err();
    assert_eq!(
        (error.file(), error.line(), error.column()),
        ("bad.toml", 2, 1)
    );
}
