//! "Always": one more rule in the user's policy file, as narrow as the language allows. Everything else in the file stays.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, slice};

use invigil_policy::Policy;
use invigil_schema::{AddedRule, Address, Asked, FileOpKind, OpenFlag, OsText};
use toml_edit::{
    Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, TableLike, Value, value,
};

use crate::guard::decide;

/// Says whether the policy would allow an action if the user's file had this text, and otherwise why not.
type Check = dyn Fn(&str, &Asked) -> Result<(), String> + Send + Sync;

/// The user's own policy file, to which a rule can be added.
#[derive(Clone)]
pub struct UserPolicy {
    path: PathBuf,
    check: Arc<Check>,
}

/// Why no rule was added.
#[derive(Debug, thiserror::Error)]
pub enum GrantError {
    /// The rule would not be what was meant.
    #[error("{0} cannot be said literally in a policy")]
    Unsayable(&'static str),
    /// The file is not TOML.
    #[error("{}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The rule alone does not help.
    #[error("a rule in {} would not help: {why}", path.display())]
    Useless {
        /// The file.
        path: PathBuf,
        /// What stands in the way.
        why: String,
    },
    /// The file cannot be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
}

impl UserPolicy {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file at this place, which need not exist. `check` loads a text in its stead, with all that stands above and
    /// below it, and says whether an action is then allowed.
    pub fn new(
        path: impl Into<PathBuf>,
        check: impl Fn(&str, &Asked) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        UserPolicy {
            path: path.into(),
            check: Arc::new(check),
        }
    }

    /// The same, where `load` gives the policy as it would be with a text in the file's stead.
    pub fn with_stack(
        path: impl Into<PathBuf>,
        load: impl Fn(&str) -> Result<Policy, String> + Send + Sync + 'static,
    ) -> Self {
        UserPolicy::new(path, move |text, what| match decide(&load(text)?, what) {
            Some(verdict) => Err(format!("{} still stands", verdict.cite())),
            None => Ok(()),
        })
    }

    /// Adds a rule that allows exactly this.
    pub(super) fn grant(&self, what: &Asked, note: &str) -> Result<AddedRule, GrantError> {
        // Where the file is a link, what it leads to is replaced.
        let path = self.path.canonicalize().unwrap_or(self.path.clone());
        let failed = |action| {
            let path = path.clone();
            move |source| GrantError::Io {
                action,
                path,
                source,
            }
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(directory).map_err(failed("make the directory of"))?;
        // Two supervisors may be told "always" at once.
        let held = File::open(directory).and_then(|held| held.lock().map(|()| held));
        let held = held.map_err(failed("lock the directory of"))?;
        let old = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("read")(error)),
        };
        let new = with_rule(&old, what, note).map_err(|error| match error {
            Flaw::Unsayable(what) => GrantError::Unsayable(what),
            Flaw::Broken(why) => GrantError::Broken {
                path: path.clone(),
                why,
            },
        })?;
        (self.check)(&new, what).map_err(|why| GrantError::Useless {
            path: path.clone(),
            why,
        })?;
        replace(&path, &new).map_err(failed("write"))?;
        drop(held);
        let (line, text) = difference(&old, &new);
        Ok(AddedRule {
            file: path.into_os_string().into(),
            line,
            text,
        })
    }
}

/// The new file takes the place of the old one when its bytes are on the disk.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let draft = path.with_extension(format!("toml.{}", uuid::Uuid::now_v7().simple()));
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options.open(&draft).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        if let Ok(metadata) = path.metadata() {
            file.set_permissions(metadata.permissions())?;
        }
        file.sync_all()?;
        fs::rename(&draft, path)
    });
    if written.is_err() {
        drop(fs::remove_file(&draft));
    }
    written
}

enum Flaw {
    Unsayable(&'static str),
    Broken(String),
}

/// The text of a policy file with one more rule.
fn with_rule(old: &str, what: &Asked, note: &str) -> Result<String, Flaw> {
    let mut document: DocumentMut = old
        .parse()
        .map_err(|error: toml_edit::TomlError| Flaw::Broken(error.to_string()))?;
    if document.is_empty() {
        document["version"] = value(1);
    }
    let broken = |what: &str| Flaw::Broken(format!("`{what}` is not what it should be"));
    match what {
        Asked::Exec { program, argv, .. } => {
            let mut rule = Table::new();
            rule["program"] = value(literal(program)?);
            let mut args = Array::new();
            for arg in argv.iter().skip(1) {
                args.push(literal(arg)?);
            }
            rule["args"] = value(args);
            rule["decision"] = value("allow");
            rule["reason"] = value(note);
            let rules = document
                .entry("exec")
                .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
            let rules = rules.as_array_of_tables_mut();
            rules.ok_or_else(|| broken("exec"))?.push(rule);
        }
        Asked::File {
            op,
            path,
            to,
            flags,
            ..
        } => {
            let section = match op {
                FileOpKind::Open if !writes(flags) => "read",
                _ => "write",
            };
            let files = child(document.as_table_mut(), "files", true);
            let files = files.ok_or_else(|| broken("files"))?;
            let table = child(files, section, false).ok_or_else(|| broken("files"))?;
            let to = match op {
                // The text of a link is no access.
                FileOpKind::Symlink => None,
                _ => to.as_ref(),
            };
            for path in slice::from_ref(path).iter().chain(to) {
                allow(table, &literal(path)?, note).ok_or_else(|| broken("allow"))?;
            }
        }
        Asked::Net { address, .. } => {
            let rule = match address {
                Address::Inet { ip, port } => format!("{ip}:{port}"),
                Address::Inet6 { ip, port, .. } => format!("[{ip}]:{port}"),
                Address::Unix { path } => format!("unix:{}", literal(path)?),
                Address::Abstract { name } => format!("unix:@{}", literal(name)?),
                Address::Unnamed | Address::Other { .. } => {
                    return Err(Flaw::Unsayable("an address of this kind"));
                }
            };
            let network = child(document.as_table_mut(), "network", false);
            let network = network.ok_or_else(|| broken("network"))?;
            allow(network, &rule, note).ok_or_else(|| broken("allow"))?;
        }
    }
    Ok(document.to_string())
}

pub(super) fn writes(flags: &[OpenFlag]) -> bool {
    use OpenFlag::{Append, Create, Temporary, Truncate, Write};
    let writing = [Write, Append, Create, Truncate, Temporary];
    flags.iter().any(|flag| writing.contains(flag))
}

/// A table in a table, made if it is not there. One that only holds others has no header of its own.
fn child<'t>(
    table: &'t mut dyn TableLike,
    name: &str,
    implicit: bool,
) -> Option<&'t mut dyn TableLike> {
    let made = || {
        let mut table = Table::new();
        table.set_implicit(implicit);
        Item::Table(table)
    };
    table.entry(name).or_insert_with(made).as_table_like_mut()
}

/// One more entry of `allow`, laid out like those that are there.
fn allow(table: &mut dyn TableLike, rule: &str, note: &str) -> Option<()> {
    let mut entry = InlineTable::new();
    entry.insert("rule", rule.into());
    entry.insert("reason", note.into());
    let list = table
        .entry("allow")
        .or_insert_with(|| value(Array::new()))
        .as_array_mut()?;
    let mut entry = Value::InlineTable(entry);
    let last = list.iter().last().map(|last| last.decor().clone());
    let prefix = last.as_ref().and_then(|decor| decor.prefix()?.as_str());
    match prefix.and_then(|prefix| Some(&prefix[prefix.rfind('\n')?..])) {
        Some(own_line) => {
            entry.decor_mut().set_prefix(own_line);
            let tail = list.trailing().as_str().unwrap_or("\n").to_owned();
            list.push_formatted(entry);
            list.set_trailing(tail);
            list.set_trailing_comma(true);
        }
        None => list.push(entry),
    }
    Some(())
}

/// A text that matches itself and nothing else.
fn literal(text: &OsText) -> Result<String, Flaw> {
    let text = str::from_utf8(text.as_bytes())
        .map_err(|_| Flaw::Unsayable("an argument or a path that is not UTF-8"))?;
    if text.chars().any(char::is_control) {
        return Err(Flaw::Unsayable("a control character"));
    }
    // Two dots are "whatever comes".
    if text == ".." {
        return Ok(r"\..".to_owned());
    }
    let mut literal = String::with_capacity(text.len());
    for c in text.chars() {
        if r"*?[]{}\,".contains(c) {
            literal.push('\\');
        }
        literal.push(c);
    }
    Ok(literal)
}

/// The lines of `new` that are not in `old`, and where they begin.
fn difference(old: &str, new: &str) -> (u64, String) {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let same = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - same;
    let ends = old.iter().rev().zip(new.iter().rev());
    let tail = ends.take(rest).take_while(|(a, b)| a == b).count();
    let added = &new[same..new.len() - tail];
    let empty = added.iter().take_while(|line| line.is_empty()).count();
    ((same + empty + 1) as u64, added[empty..].join("\n"))
}

impl fmt::Debug for UserPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UserPolicy").field(&self.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use invigil_policy::{Action, Exec, Layer, Places, Policy, Source, Verdict};
    use invigil_schema::NetOpKind;

    fn exec(program: &str, argv: &[&str]) -> Asked {
        Asked::Exec {
            program: program.into(),
            argv: argv.iter().map(|arg| OsText::from(*arg)).collect(),
            cwd: "/".into(),
        }
    }

    fn verdict(text: &str, what: &Asked) -> Result<Verdict, String> {
        let places = Places {
            home: "/home/u".into(),
            workspace: "/w".into(),
            tmp: "/tmp".into(),
            path: vec!["/usr/bin".into()],
        };
        let asks = "version = 1\ndefault = \"ask\"\n".to_owned();
        let source = |name: &str, text: String, layer| Source {
            name: name.to_owned(),
            text,
            layer,
        };
        let sources = [
            source("profile", asks, Layer::Builtin),
            source("user", text.to_owned(), Layer::User),
        ];
        let policy = Policy::load(&sources, &places).map_err(|error| error.to_string())?;
        Ok(match what {
            Asked::Exec { program, argv, .. } => policy.verdict(&Action::Exec(Exec {
                program: program.as_bytes(),
                called: program.as_bytes(),
                argv,
                interpreter: None,
            })),
            Asked::File {
                path, op, flags, ..
            } => match *op == FileOpKind::Open && !writes(flags) {
                true => policy.verdict(&Action::Read(path.as_bytes())),
                false => policy.verdict(&Action::Write(path.as_bytes())),
            },
            Asked::Net { address, .. } => {
                let Address::Inet { ip, port } = address else {
                    return Err("not in this test".to_owned());
                };
                let addr = (*ip, *port).into();
                let endpoint = invigil_policy::Endpoint { addr, host: None };
                policy.verdict(&Action::Connect(endpoint))
            }
        })
    }

    fn user_policy(path: &Path) -> UserPolicy {
        UserPolicy::new(path, |text, what| match verdict(text, what)? {
            Verdict::Allow => Ok(()),
            other => Err(format!("it is still {}", other.as_str())),
        })
    }

    fn file(op: FileOpKind, path: &str, flags: &[OpenFlag]) -> Asked {
        Asked::File {
            op,
            path: path.into(),
            to: None,
            flags: flags.to_vec(),
            detail: None,
        }
    }

    #[test]
    fn a_rule_allows_what_was_shown_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/policy.toml");
        let policy = user_policy(&path);
        let push = exec("/usr/bin/git", &["git", "push", "origin", "ma*n", ".."]);
        let added = policy.grant(&push, "approved in run_1").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!((added.line, &added.text), (1, &text.trim_end().to_owned()));
        assert!(text.contains("[[exec]]\nprogram = \"/usr/bin/git\"\nargs = "));
        assert_eq!(verdict(&text, &push), Ok(Verdict::Allow));
        for other in [
            &["git", "push", "origin", "main", ".."][..],
            &["git", "push", "origin", "ma*n", "..", "--force"],
            &["git", "push", "origin", "ma*n"],
            &["git", "push", "origin", "ma*n", "x"],
        ] {
            let other = exec("/usr/bin/git", other);
            assert_eq!(verdict(&text, &other), Ok(Verdict::Ask), "{other:?}");
        }
        let elsewhere = exec("/tmp/git", &["git", "push", "origin", "ma*n", ".."]);
        assert_eq!(verdict(&text, &elsewhere), Ok(Verdict::Ask));
    }

    #[test]
    fn comments_order_and_layout_stay() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        let old = "# mine\nversion = 1 # one\n\n[files.write]\nallow = [\n    \"/a/**\", # a\n    \"/b\",\n]\n\n# the end\n[network]\nallow = [\"1.2.3.4:443\"]\n";
        fs::write(&path, old).unwrap();
        let policy = user_policy(&path);
        let write = file(FileOpKind::Create, "/c/{x}", &[OpenFlag::Write]);
        let added = policy.grant(&write, "n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(added.line, 8, "{text}");
        assert_eq!(added.text, r#"    { rule = '/c/\{x\}', reason = "n" },"#);
        assert_eq!(text.replace(&format!("{}\n", added.text), ""), old);
        let net = Asked::Net {
            op: NetOpKind::Connect,
            address: Address::Inet {
                ip: [10, 0, 0, 1].into(),
                port: 22,
            },
        };
        let added = policy.grant(&net, "n").unwrap();
        assert!(added.text.contains("10.0.0.1:22"), "{}", added.text);
        let read = file(FileOpKind::Open, "/etc/hosts", &[OpenFlag::Read]);
        policy.grant(&read, "n").unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for what in [&write, &net, &read] {
            assert_eq!(verdict(&text, what), Ok(Verdict::Allow), "{text}");
        }
        for kept in ["# mine", "# one", "# a", "# the end"] {
            assert!(text.contains(kept), "{text}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_would_not_help_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("policy.toml");
        let push = exec("/usr/bin/git", &["git", "push"]);
        let own = "version = 1\n[[exec]]\nprogram = \"git\"\nargs = [\"push\", \"..\"]\ndecision = \"ask\"\n";
        for (old, what) in [
            (own, &push),
            ("version = \n", &push),
            ("version = 1\nexec = 7\n", &push),
            ("version = 1\n", &exec("/usr/bin/git", &["git", "a\nb"])),
        ] {
            fs::write(&path, old).unwrap();
            let error = user_policy(&path).grant(what, "n").unwrap_err();
            assert_eq!(fs::read_to_string(&path).unwrap(), old, "{error}");
        }
    }

    #[test]
    fn a_linked_file_stays_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let (path, real) = (
            directory.path().join("policy.toml"),
            directory.path().join("dot"),
        );
        fs::write(&real, "version = 1\n").unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        let push = exec("/usr/bin/git", &["git", "push"]);
        user_policy(&path).grant(&push, "n").unwrap();
        assert!(path.is_symlink() && fs::read_to_string(&real).unwrap().contains("push"));
    }
}
