//! What a sandbox is told to enforce.

use std::path::PathBuf;
use std::time::Duration;

use invigil_policy::Layer::{Project, User};
use invigil_policy::ProgramPattern;

use super::{policy, stack};

fn paths(paths: &[&str]) -> Option<Vec<PathBuf>> {
    Some(paths.iter().map(PathBuf::from).collect())
}

#[test]
fn roots_are_the_plain_beginnings_of_what_is_allowed() {
    let text = r#"
        [files.write]
        default = "deny"
        allow = ["${workspace}/**", "/tmp/a*/x", "/tmp/b", "/dev/{null,tty}", "/tmp/deep/**/x"]
        ask = ["/srv/x/**"]
        deny = ["/secret/**"]
    "#;
    let bounds = policy(text).bounds();
    assert_eq!(
        bounds.write_roots,
        paths(&["/dev/null", "/dev/tty", "/home/me/work", "/srv/x", "/tmp"])
    );
    assert_eq!(bounds.read_roots, None);
    assert!(!bounds.reads);
    let anywhere = policy("[files.write]\ndefault = \"deny\"\nallow = [\"**/cache/**\"]").bounds();
    assert_eq!(anywhere.write_roots, None);
    let asks = policy("[files.write]\ndefault = \"ask\"\nallow = [\"/x\"]").bounds();
    assert_eq!(asks.write_roots, None, "an answer may allow anything");
    let nothing = policy("[files.write]\ndefault = \"deny\"").bounds();
    assert_eq!(nothing.write_roots, paths(&[]));
}

#[test]
fn a_project_narrows_the_bound_and_never_widens_it() {
    let own = "[files.write]\ndefault = \"deny\"\nallow = [\"/own/**\"]";
    let project = "[files.write]\ndefault = \"deny\"\nallow = [\"/project/**\"]";
    assert_eq!(
        stack(&[(User, own), (Project, project)])
            .bounds()
            .write_roots,
        paths(&["/own"])
    );
    assert_eq!(
        stack(&[(User, "default = \"allow\""), (Project, project)])
            .bounds()
            .write_roots,
        paths(&["/project"])
    );
    let loosened = stack(&[
        (Project, project),
        (User, "[files.write]\ndefault = \"allow\""),
    ]);
    assert_eq!(loosened.bounds().write_roots, None);
}

#[test]
fn reads_are_judged_as_soon_as_one_can_be_refused() {
    assert!(policy("[files.read]\ndeny = [\"/x\"]").bounds().reads);
    assert!(policy("default = \"deny\"").bounds().reads);
    assert!(
        policy("[programs]\ndeny = [\"curl\"]").bounds().reads,
        "so that it cannot be copied"
    );
    assert!(!policy("[files.read]\nallow = [\"/x\"]").bounds().reads);
    assert!(policy("").strict().bounds().reads);
}

#[test]
fn ports_and_names() {
    let text = "[network]\ndefault = \"deny\"\nallow = [\"a.example:443\", \"10.0.0.0/8:8000-8010\", \"unix:/x\"]";
    let bounds = policy(text).bounds();
    assert_eq!(bounds.ports, Some(vec![443..=443, 8000..=8010]));
    assert!(bounds.names && bounds.network && bounds.unix && !bounds.network_off());
    let any = policy("[network]\ndefault = \"deny\"\nallow = [\"127.0.0.1:*\"]").bounds();
    assert_eq!(any.ports, None);
    assert!(!any.names);
    assert!(
        policy("[network]\ndefault = \"deny\"")
            .bounds()
            .network_off()
    );
    assert!(
        policy("[network]\ndefault = \"deny\"\nallow = [\"unix:/x\"]")
            .bounds()
            .network_off()
    );
    let unix_only = policy("[network]\ndeny = [\"unix:/x\"]").bounds();
    assert!(unix_only.unix && !unix_only.network);
}

#[test]
fn programs() {
    let text = r#"
        [programs]
        default = "deny"
        allow = ["git", "/usr/lib/**", "/opt/x"]
        deny = ["curl", "/bin/nc", "wget*", "/x/*"]
        [[exec]]
        program = "sed"
        args = ["-i", ".."]
        decision = "deny"
    "#;
    let bounds = policy(text).bounds();
    let roots = bounds.exec_roots.unwrap();
    assert_eq!(roots.names, ["git"]);
    assert_eq!(Some(roots.roots), paths(&["/opt/x", "/usr/lib"]));
    assert_eq!(
        bounds.denied_programs,
        [
            ProgramPattern::Name("curl".into()),
            ProgramPattern::Path("/bin/nc".into()),
            ProgramPattern::Glob("wget*".into()),
            ProgramPattern::Glob("/x/*".into()),
        ]
    );
    assert!(bounds.execs);
}

#[test]
fn the_budget() {
    let text = "[budget]\nwall = \"30m\"\ncpu = \"90s\"\nmemory = \"4GiB\"\nprocesses = 512\noutput = \"64MiB\"\nfile_size = \"1GB\"\ntool_calls = 200";
    let budget = policy(text).bounds().budget;
    assert_eq!(budget.wall, Some(Duration::from_secs(1800)));
    assert_eq!(budget.cpu, Some(Duration::from_secs(90)));
    assert_eq!(budget.memory, Some(4 << 30));
    assert_eq!(budget.processes, Some(512));
    assert_eq!(budget.output, Some(64 << 20));
    assert_eq!(budget.file_size, Some(1_000_000_000));
    assert_eq!(budget.tool_calls, Some(200));
}
