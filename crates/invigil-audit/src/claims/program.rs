//! What a process really runs: the file that the kernel has loaded. What it calls itself is an argument like any other.

use super::suites::{self, base_name};

/// Many programs in one file: they are what they are called.
const MANY_IN_ONE: &[&str] = &["busybox", "coreutils", "rustup", "toybox", "volta-shim"];
/// Programs that run a script, without the digits of their versions.
const INTERPRETERS: &[&str] = &[
    "Rscript", "ash", "bash", "bun", "dash", "deno", "fish", "ksh", "lua", "luajit", "node",
    "nodejs", "perl", "php", "pypy", "python", "ruby", "sh", "tclsh", "zsh",
];
const SHELLS: &[&str] = &["ash", "bash", "dash", "fish", "ksh", "sh", "zsh"];
/// With these, what follows is no script, or is not run.
const INLINE: &[&str] = &[
    "--check", "--eval", "-c", "-e", "-ic", "-lc", "-m", "-n", "-r",
];
/// As many words can stand before a script.
const IN_FRONT: usize = 3;

/// A program that was loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// The file that the kernel has loaded.
    pub(super) executable: String,
    /// What was asked for, if that is another name of it which the run has not made itself.
    pub(super) requested: Option<String>,
    pub(super) argv: Vec<String>,
}

/// How a program runs some words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Run {
    /// With these arguments.
    Exact,
    /// With more.
    More,
    /// With more, among them one with which programs do nothing.
    Idle,
}

/// One way to name what runs, and what stands behind that name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading<'a> {
    /// The whole path, as far as it was said.
    pub(super) path: &'a str,
    pub(super) arguments: &'a [String],
}

impl<'a> Reading<'a> {
    pub(super) fn name(&self) -> &'a str {
        base_name(self.path)
    }
}

impl Program {
    /// Everything that runs here: the program, and the script that it interprets.
    pub(super) fn readings(&self) -> Vec<Reading<'_>> {
        let arguments = self.argv.get(1..).unwrap_or_default();
        let program = |path| Reading { path, arguments };
        let mut readings = vec![program(self.executable.as_str())];
        readings.extend(self.called().map(program));
        readings.extend(self.script());
        readings
    }

    /// The same, and the link by which it was found.
    pub(super) fn names(&self) -> Vec<Reading<'_>> {
        let mut readings = self.readings();
        let link = self.requested.as_deref().map(|path| Reading {
            path,
            ..readings[0]
        });
        readings.extend(link);
        readings
    }

    /// Another name of it that says what it does.
    fn called(&self) -> Option<&str> {
        let own = base_name(&self.executable);
        if MANY_IN_ONE.contains(&own) {
            return self.argv.first().map(String::as_str);
        }
        // `python3` for `python3.11`, but not `pytest` for `true`.
        let link = self.requested.as_deref()?;
        own.starts_with(base_name(link)).then_some(link)
    }

    fn script(&self) -> Option<Reading<'_>> {
        if !self.is_one_of(INTERPRETERS) {
            return None;
        }
        let words = self.argv.iter().take(IN_FRONT).enumerate().skip(1);
        let mut front = words.take_while(|(_, word)| !INLINE.contains(&word.as_str()));
        let (at, path) = front.find(|(_, word)| !word.starts_with('-'))?;
        Some(Reading {
            path,
            arguments: &self.argv[at + 1..],
        })
    }

    fn is_one_of(&self, list: &[&str]) -> bool {
        let of = |path: &str| {
            let name = base_name(path);
            let plain =
                name.trim_end_matches(|c: char| c.is_ascii_digit() || matches!(c, '.' | '-'));
            list.contains(&name) || list.contains(&plain)
        };
        of(&self.executable) || self.called().is_some_and(of)
    }

    /// Whether it is a shell that was given this text: `sh -c TEXT`, with whatever options.
    pub(super) fn is_given(&self, text: &str) -> bool {
        let is_option = |word: &&String| word.starts_with('-') && word.ends_with('c');
        let given = self.argv.iter().skip(1).skip_while(|word| !is_option(word));
        let mut given = given.skip(1).filter(|word| *word != "--");
        self.is_one_of(SHELLS)
            && given
                .next()
                .is_some_and(|given| given.trim() == text.trim())
    }

    /// Whether it is a run of these words: the same program, and its arguments begin like this.
    pub(super) fn runs(&self, words: &[String]) -> Option<Run> {
        let (program, rest) = words.split_first()?;
        let fits = |reading: &Reading<'_>| {
            let more = reading.arguments.strip_prefix(rest)?;
            let fits = reading.name() == base_name(program);
            fits.then_some(match more.iter().any(|word| suites::is_idle(word)) {
                true => Run::Idle,
                false if more.is_empty() => Run::Exact,
                false => Run::More,
            })
        };
        self.names().iter().filter_map(fits).min()
    }

    /// Whether it is a shell in which other programs are built.
    pub(super) fn is_all_in_one_shell(&self) -> bool {
        matches!(base_name(&self.executable), "busybox" | "toybox")
    }

    /// Whether a word of it names a program, in whatever way.
    pub(super) fn mentions(&self, program: &str) -> bool {
        let names = |word: &String| {
            let mut parts = word.split(|c: char| c.is_whitespace() || ";|&()'\"".contains(c));
            parts.any(|part| base_name(part) == program)
        };
        self.argv.iter().any(names) || self.names().iter().any(|name| name.name() == program)
    }

    /// In short, for people: with the name of what was loaded where it calls itself something else.
    pub(super) fn shown(&self) -> String {
        const SHOWN: usize = 80;
        let first = self.argv.first().map_or("", |word| base_name(word));
        let known = self.names().iter().any(|name| name.name() == first);
        let text = match known {
            true => self.argv.join(" "),
            false => {
                let rest = self.argv.iter().skip(1).map(String::as_str);
                let words: Vec<&str> = [self.executable.as_str()].into_iter().chain(rest).collect();
                words.join(" ")
            }
        };
        match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }
}

/// The words of a command line, as a shell would see them if it were simple.
pub(super) fn split(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut begun) = (String::new(), None, false);
    for c in command.chars() {
        match (quote, c) {
            (None, '\'' | '"') => (quote, begun) = (Some(c), true),
            (Some(end), c) if c == end => quote = None,
            (None, c) if c.is_whitespace() => {
                if begun {
                    words.push(std::mem::take(&mut word));
                }
                begun = false;
            }
            (_, c) => {
                word.push(c);
                begun = true;
            }
        }
    }
    if begun {
        words.push(word);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was loaded, what was asked for, and the arguments.
    fn program(executable: &str, requested: Option<&str>, argv: &str) -> Program {
        Program {
            executable: executable.into(),
            requested: requested.map(str::to_owned),
            argv: split(argv),
        }
    }

    fn plain(argv: &str) -> Program {
        program(&split(argv)[0], None, argv)
    }

    #[test]
    fn words_of_a_command_line() {
        assert_eq!(split("a 'b c' \"d\" e'f'"), ["a", "b c", "d", "ef"]);
        assert_eq!(split("  "), Vec::<String>::new());
        assert_eq!(split("x ''"), ["x", ""]);
    }

    #[test]
    fn a_run_of_a_command() {
        let run = |argv: &str, claim: &str| plain(argv).runs(&split(claim)).is_some();
        assert!(run("/usr/bin/cargo test --all", "cargo test"));
        assert!(run("/bin/sh ./build.sh x", "./build.sh x"));
        assert!(run("python3 -u tool.py", "tool.py"));
        assert!(!run("cargo build", "cargo test"));
        assert!(!run("echo cargo test", "test"));
        assert!(!run("echo cargo test", "cargo test"));
        assert!(!run("cat a b build.sh", "build.sh"));
        assert!(!run("python3 -c tool.py", "tool.py"));
        let how = |argv: &str| plain(argv).runs(&split("pytest -q"));
        assert_eq!(how("pytest -q"), Some(Run::Exact));
        assert_eq!(how("pytest -q a.py"), Some(Run::More));
        assert_eq!(how("pytest -q --version"), Some(Run::Idle));
        assert!(plain("bash -lc 'make x'").is_given("make x"));
        assert!(!plain("bash -lc 'make xy'").is_given("make x"));
        assert!(!plain("echo -c 'make x'").is_given("make x"));
    }

    #[test]
    fn what_was_loaded_counts_and_not_its_name() {
        let run = |program: Program, claim: &str| program.runs(&split(claim)).is_some();
        assert!(!run(program("/bin/true", None, "make all"), "make all"));
        assert!(run(program("/bin/true", None, "make all"), "true all"));
        // The link of a distribution, and files that are many programs.
        let shell = program("/usr/bin/dash", Some("/usr/bin/sh"), "sh run_tests.sh");
        assert!(run(shell, "sh run_tests.sh"));
        let cargo = program("/root/.cargo/bin/rustup", None, "cargo test");
        assert!(run(cargo, "cargo test"));
        let python = program(
            "/usr/bin/python3.11",
            Some("/usr/bin/python3"),
            "x -m pytest",
        );
        assert!(run(python, "python3 -m pytest"));
        let shown = |program: Program| program.shown();
        assert_eq!(
            shown(program("/bin/true", None, "make all")),
            "/bin/true all"
        );
        assert_eq!(shown(plain("make all")), "make all");
    }
}
