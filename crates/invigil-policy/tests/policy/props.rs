//! What must hold for every policy.

use invigil_policy::{Action, Layer, Policy, Source, Verdict};
use proptest::prelude::*;

use super::places;

const PATHS: [&str; 8] = [
    "/a",
    "/a/b",
    "/a/b/c",
    "/a/x.key",
    "/b",
    "/b/.env",
    "/a/b/.env",
    "/c/d/e/f",
];

fn glob() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-d]",
        Just("*".to_owned()),
        Just("**".to_owned()),
        Just(".env".to_owned()),
        Just("*.key".to_owned()),
        Just("?".to_owned()),
        Just("{a,b}".to_owned())
    ];
    prop::collection::vec(part, 1..4).prop_map(|parts| format!("/{}", parts.join("/")))
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop::sample::select(Verdict::ALL.to_vec())
}

type Rules = Vec<(String, Verdict)>;

fn rules() -> impl Strategy<Value = Rules> {
    prop::collection::btree_map(glob(), verdict(), 0..8)
        .prop_map(|rules| rules.into_iter().collect())
}

fn layer() -> impl Strategy<Value = Layer> {
    prop::sample::select(vec![
        Layer::Builtin,
        Layer::User,
        Layer::Project,
        Layer::CommandLine,
    ])
}

/// A file with these rules in this order.
fn file(layer: Layer, rules: &Rules, default: Option<Verdict>) -> Source {
    let mut text = "version = 1\n[files.read]\n".to_owned();
    // Not nothing, even without rules.
    text.push_str("ask = [\"/never/matched\",");
    let list = |wanted| {
        rules
            .iter()
            .filter(move |(_, verdict)| *verdict == wanted)
            .map(|(glob, _)| format!("{glob:?},"))
    };
    text.extend(list(Verdict::Ask));
    text.push_str("]\n");
    for verdict in [Verdict::Deny, Verdict::Allow] {
        if list(verdict).next().is_some() {
            text.push_str(&format!(
                "{} = [{}]\n",
                verdict.as_str(),
                list(verdict).collect::<String>()
            ));
        }
    }
    if let Some(default) = default {
        text.push_str(&format!("default = {:?}\n", default.as_str()));
    }
    Source {
        name: "p".into(),
        text,
        layer,
    }
}

fn load(files: &[Source]) -> Policy {
    Policy::load(files, &places()).unwrap()
}

fn verdicts(policy: &Policy) -> Vec<Verdict> {
    PATHS
        .iter()
        .map(|path| policy.verdict(&Action::Read(path.as_bytes())))
        .collect()
}

proptest! {
    #[test]
    fn the_order_of_rules_never_matters(rules in rules(), default in prop::option::of(verdict())) {
        let mut backwards = rules.clone();
        backwards.reverse();
        let (one, other) = (load(&[file(Layer::User, &rules, default)]), load(&[file(Layer::User, &backwards, default)]));
        prop_assert_eq!(verdicts(&one), verdicts(&other));
    }

    #[test]
    fn the_quick_verdict_is_that_of_the_decision(files in prop::collection::vec((layer(), rules(), prop::option::of(verdict())), 0..4), strict: bool) {
        let sources: Vec<Source> = files.iter().map(|(layer, rules, default)| file(*layer, rules, *default)).collect();
        let policy = load(&sources);
        let policy = if strict { policy.strict() } else { policy };
        for path in PATHS {
            let action = Action::Read(path.as_bytes());
            let decision = policy.decide(&action);
            prop_assert_eq!(decision.verdict, policy.verdict(&action));
            if let Some(rule) = decision.rule() {
                prop_assert_eq!(rule.verdict, decision.verdict);
            }
        }
    }

    #[test]
    fn one_more_deny_never_allows_more(
        files in prop::collection::vec((layer(), rules(), prop::option::of(verdict())), 1..4),
        at: prop::sample::Index,
        deny in glob(),
    ) {
        let sources = |files: &[(Layer, Rules, Option<Verdict>)]| -> Vec<Source> {
            files.iter().map(|(layer, rules, default)| file(*layer, rules, *default)).collect()
        };
        let mut files = files;
        let at = at.index(files.len());
        files[at].1.retain(|(glob, _)| *glob != deny);
        let without = verdicts(&load(&sources(&files)));
        files[at].1.push((deny, Verdict::Deny));
        let after = verdicts(&load(&sources(&files)));
        for (without, after) in without.iter().zip(&after) {
            prop_assert!(after >= without);
        }
    }

    #[test]
    fn a_project_never_loosens(
        files in prop::collection::vec((layer(), rules(), prop::option::of(verdict())), 0..4),
        at: prop::sample::Index,
        project in rules(),
        default in prop::option::of(verdict()),
    ) {
        let mut sources: Vec<Source> = files.iter().map(|(layer, rules, default)| file(*layer, rules, *default)).collect();
        let without = verdicts(&load(&sources));
        sources.insert(at.index(sources.len() + 1), file(Layer::Project, &project, default));
        let with = verdicts(&load(&sources));
        for (without, with) in without.iter().zip(&with) {
            prop_assert!(with >= without);
        }
    }

    #[test]
    fn what_is_refused_below_a_directory_is_foreseen(deny in glob()) {
        let policy = load(&[file(Layer::User, &vec![(deny, Verdict::Deny)], Some(Verdict::Allow))]);
        for path in PATHS {
            if policy.verdict(&Action::Read(path.as_bytes())) == Verdict::Deny {
                let mut parent = path;
                while let Some((directory, _)) = parent.rsplit_once('/') {
                    let asked = if directory.is_empty() { "/" } else { directory };
                    prop_assert!(policy.refuses_below(asked.as_bytes()), "{asked} of {path}");
                    parent = directory;
                }
            }
        }
    }

    #[test]
    fn nothing_outside_of_the_bound_is_allowed(files in prop::collection::vec((layer(), rules(), prop::option::of(verdict())), 0..4)) {
        let sources: Vec<Source> = files.iter().map(|(layer, rules, default)| file(*layer, rules, *default)).collect();
        let policy = load(&sources);
        if let Some(roots) = policy.bounds().read_roots {
            for path in PATHS {
                let inside = roots.iter().any(|root| std::path::Path::new(path).starts_with(root));
                let verdict = policy.verdict(&Action::Read(path.as_bytes()));
                prop_assert!(inside || verdict == Verdict::Deny, "{path} is {verdict:?} outside of {roots:?}");
            }
        }
    }

    #[test]
    fn no_text_makes_the_reader_stumble(text in "(version = 1\n)?([\\[\\]{}a-z=\"'., \n*~/$:0-9ü]|deny|allow|exec|files){0,60}") {
        let source = Source { name: "p".into(), text, layer: Layer::User };
        if let Err(error) = Policy::load(&[source], &places()) {
            prop_assert!(!error.report().is_empty());
        }
    }
}
