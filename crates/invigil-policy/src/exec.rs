//! Rules about programs and their arguments.
//!
//! A rule that makes things stricter (`ask`, `deny`) looks at a program from every side: the file that is loaded, the name
//! by which it was called, the name that it is told, and its arguments with the options in front skipped. A rule that
//! allows looks only at what cannot be made up: the file, and the arguments exactly as they are.

use std::collections::HashMap;
use std::path::Path;

use globset::{Candidate, Glob, GlobMatcher};
use invigil_schema::OsText;

use crate::error::Flaw;
use crate::glob::{Globs, Judged, PathGlob, literal, name_globs};
use crate::syntax::Text;
use crate::{Exec, Places, ProgramPattern, Verdict};

/// A rule about programs.
#[derive(Debug, Clone)]
pub(crate) struct ExecRule {
    pub(crate) verdict: Verdict,
    pub(crate) program: Program,
    /// None is: whatever the arguments.
    pub(crate) args: Option<Args>,
}

/// Which programs.
#[derive(Debug, Clone)]
pub(crate) enum Program {
    /// By the last part of the path; without braces.
    Names(Vec<Glob>),
    Paths(PathGlob),
}

impl Program {
    pub(crate) fn parse(text: &Text<'_>, places: &Places) -> Result<Self, Flaw> {
        if text.text.contains('/') || text.text.starts_with(['~', '$']) {
            return Ok(Program::Paths(PathGlob::parse(text, places)?));
        }
        if text.text.is_empty() || text.text.contains(char::is_whitespace) {
            let message = format!("`{}` is not a program", text.text);
            let help = "write a name like \"git\" or a path like \"/usr/bin/git\"; arguments go into args = [\"push\", \"..\"] of [[exec]]";
            return Err(Flaw::new(text.span.clone(), message, "not a program", help));
        }
        Ok(Program::Names(name_globs(text)?))
    }

    /// How the sandbox is told.
    pub(crate) fn patterns(&self) -> Vec<ProgramPattern> {
        match self {
            Program::Names(globs) => globs
                .iter()
                .map(|glob| match literal(glob.glob()) {
                    Some(name) => ProgramPattern::Name(name),
                    None => ProgramPattern::Glob(glob.glob().to_owned()),
                })
                .collect(),
            Program::Paths(paths) => {
                let named = paths.shapes.iter().filter_map(|shape| shape.only_path());
                let named = named.map(ProgramPattern::Path);
                let globs = paths
                    .globs
                    .iter()
                    .filter(|glob| literal(glob.glob()).is_none());
                named
                    .chain(globs.map(|glob| ProgramPattern::Glob(glob.glob().to_owned())))
                    .collect()
            }
        }
    }
}

/// Which arguments.
#[derive(Debug, Clone)]
pub(crate) struct Args {
    pub(crate) patterns: Vec<Arg>,
    pub(crate) options: Options,
}

#[derive(Debug, Clone)]
pub(crate) enum Arg {
    /// `..`: any number of arguments, none too.
    Rest,
    /// One argument that is one of these.
    One(Vec<GlobMatcher>),
}

impl Arg {
    pub(crate) fn parse(text: &Text<'_>) -> Result<Self, Flaw> {
        if text.text == ".." {
            return Ok(Arg::Rest);
        }
        let globs = name_globs(text)?;
        Ok(Arg::One(globs.iter().map(Glob::compile_matcher).collect()))
    }

    fn is_option(&self) -> bool {
        match self {
            Arg::Rest => false,
            Arg::One(globs) => globs.iter().any(|glob| glob.glob().glob().starts_with('-')),
        }
    }
}

/// What may stand between a program and its subcommand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Options {
    /// Nobody knows: an option may have a value as the next word or not, and both readings count.
    Unknown,
    /// These have their value as the next word, all others do not. A glob (`+*`) is a word that stands alone.
    Known(Vec<String>),
}

impl Options {
    /// Of programs that everybody has.
    pub(crate) fn of(program: &Program) -> Options {
        let Program::Names(globs) = program else {
            let Program::Paths(paths) = program else {
                return Options::Unknown;
            };
            let names = paths.shapes.iter().filter_map(|shape| shape.only_path());
            let names = names.map(|path| {
                path.file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned()
            });
            return Options::of_names(names.collect());
        };
        Options::of_names(
            globs
                .iter()
                .filter_map(|glob| literal(glob.glob()))
                .collect(),
        )
    }

    /// Known only if all of the programs are the same in this.
    fn of_names(names: Vec<String>) -> Options {
        let mut known = names.iter().map(|name| {
            GLOBAL_OPTIONS
                .iter()
                .find(|(programs, _)| programs.contains(&name.as_str()))
        });
        let Some(Some((_, first))) = known.next() else {
            return Options::Unknown;
        };
        match known.all(|other| other.is_some_and(|(_, options)| options == first)) {
            true => Options::Known(first.iter().map(|option| (*option).to_owned()).collect()),
            false => Options::Unknown,
        }
    }

    /// How many words an option in front of the subcommand may take: itself, itself and its value, or either.
    fn width(&self, word: &[u8]) -> (bool, bool) {
        let option = word.len() > 1 && word.starts_with(b"-");
        match self {
            Options::Unknown if !option => (false, false),
            Options::Unknown if word == b"--" || word.contains(&b'=') => (true, false),
            Options::Unknown => (true, true),
            Options::Known(list) => {
                let alone = list.iter().any(|known| {
                    known
                        .strip_suffix('*')
                        .is_some_and(|prefix| word.starts_with(prefix.as_bytes()))
                });
                let valued = list.iter().any(|known| known.as_bytes() == word);
                ((option && !valued) || alone, valued)
            }
        }
    }
}

/// Options with a value as the next word that may stand between a program and its subcommand.
const GLOBAL_OPTIONS: &[(&[&str], &[&str])] = &[
    (
        &["git"],
        &[
            "-C",
            "-c",
            "--git-dir",
            "--work-tree",
            "--namespace",
            "--super-prefix",
            "--config-env",
            "--attr-source",
            "--exec-path",
        ],
    ),
    (
        &["cargo"],
        &["+*", "-C", "-Z", "--color", "--config", "--explain"],
    ),
    (
        &["docker", "podman"],
        &[
            "--config",
            "-c",
            "--context",
            "-H",
            "--host",
            "-l",
            "--log-level",
            "--tlscacert",
            "--tlscert",
            "--tlskey",
            "--root",
            "--runroot",
            "--connection",
            "--url",
            "--identity",
        ],
    ),
    (&["twine"], &[]),
];

impl Args {
    /// Whether the arguments match as they are.
    fn match_exactly(&self, args: &[OsText]) -> bool {
        matches(&self.patterns, args)
    }

    /// Whether the arguments match in any reading of the options in front.
    fn match_somehow(&self, args: &[OsText]) -> bool {
        if self.match_exactly(args) {
            return true;
        }
        let subcommand = self
            .patterns
            .first()
            .is_some_and(|first| matches!(first, Arg::One(_)) && !first.is_option());
        if !subcommand {
            return false;
        }
        // Whether a reading gets here, and whether one gets to the next word.
        let (mut here, mut next) = (true, false);
        for at in 0..=args.len() {
            let rest = &args[at..];
            if here && at > 0 && matches(&self.patterns, rest) {
                return true;
            }
            let width = rest
                .first()
                .filter(|_| here)
                .map(|word| self.options.width(word.as_bytes()));
            let (one, two) = width.unwrap_or_default();
            (here, next) = (next || one, two);
        }
        false
    }
}

fn matches(patterns: &[Arg], args: &[OsText]) -> bool {
    match patterns.split_first() {
        None => args.is_empty(),
        Some((Arg::Rest, [])) => true,
        Some((Arg::Rest, rest)) => (0..=args.len()).any(|skip| matches(rest, &args[skip..])),
        Some((Arg::One(globs), rest)) => args.split_first().is_some_and(|(arg, more)| {
            let arg = Candidate::from_bytes(arg.as_bytes());
            globs.iter().any(|glob| glob.is_match_candidate(&arg)) && matches(rest, more)
        }),
    }
}

/// Directories that a bare name in an `allow` stands for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trusted(Vec<Vec<u8>>);

impl Trusted {
    pub(crate) fn new(places: &Places) -> Self {
        let own = |dir: &&Path| {
            dir.is_absolute()
                && !dir.starts_with(&places.workspace)
                && !dir.starts_with(&places.tmp)
        };
        let dirs = places.path.iter().map(|path| path.as_path()).filter(own);
        let bytes = |dir: &Path| dir.as_os_str().as_encoded_bytes().to_vec();
        let mut dirs: Vec<_> = dirs.map(bytes).collect();
        if dirs.is_empty() {
            dirs = [
                "/usr/local/bin",
                "/usr/bin",
                "/bin",
                "/usr/local/sbin",
                "/usr/sbin",
                "/sbin",
            ]
            .map(|dir| dir.as_bytes().to_vec())
            .into();
        }
        Trusted(dirs)
    }

    fn holds(&self, path: &[u8]) -> bool {
        let dir = path
            .len()
            .checked_sub(base(path).len() + 1)
            .map(|end| &path[..end]);
        dir.is_some_and(|dir| self.0.iter().any(|trusted| trusted == dir))
    }

    /// Where a program of this name would be.
    pub(crate) fn guess(&self, name: &str) -> Vec<u8> {
        let mut path = self
            .0
            .iter()
            .find(|dir| dir.as_slice() == b"/usr/bin")
            .or(self.0.first())
            .cloned()
            .unwrap_or_default();
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        path
    }
}

/// The last part of a path.
pub(crate) fn base(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Rules by the names of programs.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExecIndex {
    rules: Vec<ExecRule>,
    trusted: Trusted,
    names: HashMap<Vec<u8>, Vec<usize>>,
    name_globs: Globs,
    /// Of rules without arguments.
    paths: Judged,
    /// Of rules with arguments.
    paths_with_args: Globs,
}

impl ExecIndex {
    pub(crate) fn new(rules: Vec<ExecRule>, places: &Places) -> Result<Self, globset::Error> {
        let mut names: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        let (mut globs, mut paths, mut with_args) = (Vec::new(), Vec::new(), Vec::new());
        for (n, rule) in rules.iter().enumerate() {
            match &rule.program {
                Program::Names(all) => {
                    for glob in all {
                        match literal(glob.glob()) {
                            Some(name) => names.entry(name.into_bytes()).or_default().push(n),
                            None => globs.push((glob, n)),
                        }
                    }
                }
                Program::Paths(all) if rule.args.is_none() => {
                    paths.extend(all.globs.iter().map(|glob| (glob.clone(), rule.verdict, n)));
                }
                Program::Paths(all) => with_args.extend(all.globs.iter().map(|glob| (glob, n))),
            }
        }
        Ok(ExecIndex {
            name_globs: Globs::new(globs)?,
            paths: Judged::new(&paths)?,
            paths_with_args: Globs::new(with_args)?,
            trusted: Trusted::new(places),
            names,
            rules,
        })
    }

    /// The strictest rule that matches the program itself; its interpreter is another question.
    pub(crate) fn strictest(&self, exec: &Exec<'_>) -> Option<Verdict> {
        let of_path = |path: &[u8]| self.paths.strictest(&Candidate::from_bytes(path));
        let mut strictest = of_path(exec.program);
        if exec.called != exec.program {
            strictest = strictest.max(of_path(exec.called));
        }
        self.each_by_name_or_args(exec, &mut |_, verdict| {
            strictest = strictest.max(Some(verdict))
        });
        strictest
    }

    /// Calls with each rule that matches the program itself, perhaps more than once.
    pub(crate) fn each_match(&self, exec: &Exec<'_>, mut found: impl FnMut(usize, Verdict)) {
        for path in [exec.program, exec.called] {
            self.paths.each_match(&Candidate::from_bytes(path), |n| {
                found(n, self.rules[n].verdict)
            });
        }
        self.each_by_name_or_args(exec, &mut found);
    }

    fn each_by_name_or_args(&self, exec: &Exec<'_>, found: &mut dyn FnMut(usize, Verdict)) {
        for path in [exec.program, exec.called] {
            let sure = self.trusted.holds(path);
            self.each_named(base(path), |n| self.test(n, sure, exec, found));
            self.paths_with_args
                .each_match(&Candidate::from_bytes(path), |n| {
                    self.test(n, true, exec, found)
                });
        }
        if let Some(told) = exec.argv.first() {
            self.each_named(base(told.as_bytes()), |n| self.test(n, false, exec, found));
        }
    }

    fn each_named(&self, name: &[u8], mut found: impl FnMut(usize)) {
        for &n in self.names.get(name).into_iter().flatten() {
            found(n);
        }
        self.name_globs
            .each_match(&Candidate::from_bytes(name), found);
    }

    /// `sure` is whether the way in which the program was recognised is good enough for an allow.
    fn test(&self, n: usize, sure: bool, exec: &Exec<'_>, found: &mut dyn FnMut(usize, Verdict)) {
        let rule = &self.rules[n];
        let args = exec.argv.get(1..).unwrap_or_default();
        let matches = match (rule.verdict, &rule.args) {
            (Verdict::Allow, _) if !sure => false,
            (_, None) => true,
            (Verdict::Allow, Some(wanted)) => wanted.match_exactly(args),
            (_, Some(wanted)) => wanted.match_somehow(args),
        };
        if matches {
            found(n, rule.verdict);
        }
    }
}
