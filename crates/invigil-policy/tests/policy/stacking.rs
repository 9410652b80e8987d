//! Several files: who may loosen what.

use invigil_policy::Layer::{Builtin, CommandLine, Project, User};
use invigil_policy::Verdict::{Allow, Ask as AskVerdict, Deny};
use invigil_policy::{Action, By};

use super::{Ask, stack};

const DENY_KEYS: &str = "[files.read]\ndeny = [\"/keys/**\"]";
const ALLOW_KEYS: &str = "[files.read]\nallow = [\"/keys/public\"]";

#[test]
fn the_users_own_file_may_loosen() {
    let policy = stack(&[(Builtin, DENY_KEYS), (User, ALLOW_KEYS)]);
    assert_eq!(policy.read("/keys/public"), Allow);
    assert_eq!(policy.read("/keys/private"), Deny);
    let decision = policy.ask(Action::Read(b"/keys/public"));
    assert_eq!(decision.matched.len(), 2, "what was overruled is shown too");
    let policy = stack(&[(Builtin, DENY_KEYS), (CommandLine, ALLOW_KEYS)]);
    assert_eq!(policy.read("/keys/public"), Allow);
    let policy = stack(&[(User, ALLOW_KEYS), (CommandLine, DENY_KEYS)]);
    assert_eq!(policy.read("/keys/public"), Deny);
}

#[test]
fn a_project_can_only_tighten() {
    let policy = stack(&[(Builtin, DENY_KEYS), (Project, ALLOW_KEYS)]);
    assert_eq!(policy.read("/keys/public"), Deny);
    let policy = stack(&[
        (User, "default = \"deny\""),
        (
            Project,
            "default = \"allow\"\n[files.read]\nallow = [\"/**\"]",
        ),
    ]);
    assert_eq!(policy.read("/x"), Deny);
    let policy = stack(&[
        (User, "[files.read]\nallow = [\"/**\"]"),
        (Project, "[files.read]\nask = [\"/x\"]\ndeny = [\"/y\"]"),
    ]);
    assert_eq!(policy.read("/x"), AskVerdict);
    assert_eq!(policy.read("/y"), Deny);
    assert_eq!(policy.read("/z"), Allow);
    let policy = stack(&[
        (User, "[files.read]\nallow = [\"/**\"]"),
        (
            Project,
            "[files.read]\ndefault = \"deny\"\nallow = [\"/z\"]",
        ),
    ]);
    assert_eq!(policy.read("/x"), Deny, "its default tightens too");
    assert_eq!(policy.read("/z"), Allow);
}

#[test]
fn what_the_user_names_last_may_take_back_what_a_project_says() {
    let project = "[files.read]\ndeny = [\"/x\"]";
    let policy = stack(&[
        (Project, project),
        (CommandLine, "[files.read]\nallow = [\"/x\"]"),
    ]);
    assert_eq!(policy.read("/x"), Allow);
    let policy = stack(&[(User, "[files.read]\nallow = [\"/x\"]"), (Project, project)]);
    assert_eq!(policy.read("/x"), Deny);
}

#[test]
fn a_default_takes_back_no_rule_and_the_nearer_default_counts() {
    let policy = stack(&[
        (Builtin, DENY_KEYS),
        (
            User,
            "default = \"allow\"\n[files.read]\ndefault = \"allow\"",
        ),
    ]);
    assert_eq!(policy.read("/keys/private"), Deny);
    let section = "[files.write]\ndefault = \"deny\"";
    let policy = stack(&[(Builtin, section), (User, "default = \"allow\"")]);
    assert_eq!(
        policy.write("/x"),
        Deny,
        "a default of a whole file does not take back that of a section"
    );
    let policy = stack(&[
        (Builtin, section),
        (User, "[files.write]\ndefault = \"ask\""),
    ]);
    assert_eq!(policy.write("/x"), AskVerdict);
    assert!(matches!(policy.ask(Action::Write(b"/x")).by, By::Default(rule) if rule.layer == User));
}

#[test]
fn an_answer_for_always_is_one_more_file_on_top() {
    let ask = "[[exec]]\nprogram = \"git\"\nargs = [\"push\", \"..\"]\ndecision = \"ask\"";
    let always = "[[exec]]\nprogram = \"/usr/bin/git\"\nargs = [\"push\", \"origin\", \"main\"]\ndecision = \"allow\"";
    let policy = stack(&[(User, ask), (User, always)]);
    assert_eq!(
        policy.exec("/usr/bin/git", &["push", "origin", "main"]),
        Allow
    );
    assert_eq!(
        policy.exec("/usr/bin/git", &["push", "origin", "main", "-f"]),
        AskVerdict
    );
    assert_eq!(
        policy.exec("/home/me/work/git", &["push", "origin", "main"]),
        AskVerdict
    );
}

#[test]
fn budgets_and_variables_stack_likewise() {
    let budget = |layer, wall: &str| {
        let top = format!("[budget]\nwall = \"{wall}\"");
        stack(&[
            (Builtin, "[budget]\nwall = \"10m\"\nprocesses = 5"),
            (layer, &top),
        ])
        .bounds()
        .budget
    };
    assert_eq!(budget(Project, "20m").wall.unwrap().as_secs(), 600);
    assert_eq!(budget(Project, "5m").wall.unwrap().as_secs(), 300);
    assert_eq!(budget(User, "20m").wall.unwrap().as_secs(), 1200);
    assert_eq!(budget(User, "20m").processes, Some(5));
    let passes = |layer, name: &str| {
        let policy = stack(&[
            (Builtin, "[env]\nallow = [\"PATH\", \"LC_*\"]"),
            (layer, "[env]\nallow = [\"PATH\", \"MORE\"]"),
        ]);
        policy.bounds().env.unwrap().passes(name.as_bytes())
    };
    assert!(passes(User, "PATH") && passes(User, "MORE") && passes(User, "LC_ALL"));
    assert!(passes(Project, "PATH") && !passes(Project, "MORE") && !passes(Project, "LC_ALL"));
    assert!(stack(&[(User, "")]).bounds().env.is_none());
}
