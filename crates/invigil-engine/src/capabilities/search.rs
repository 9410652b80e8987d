//! `search`: a regular expression in the files of a tree, without another process.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use grep_regex::{RegexMatcher, RegexMatcherBuilder};
use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkMatch};
use invigil_schema::OsText;
use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::change::as_path;
use super::ignored::Ignored;
use super::walk::{Chosen, Next, Visit, Visitor, walk};
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments, entry};

const MAX_MATCHES: usize = 10_000;
/// A longer line is cut where it is shown.
const MAX_LINE: usize = 1000;
/// A file with a longer line is passed over.
const MAX_HEAP: usize = 64 << 20;

/// Searches files.
pub(super) struct Search;

/// Arguments of `search`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// A regular expression for a part of a line.
    pattern: String,
    /// The directory or file; the working directory, if nothing is said.
    path: Option<OsText>,
    /// Only files that match: a pattern with a slash is about the path below the directory, one without about the name.
    glob: Option<String>,
    /// How many matching lines at most.
    #[serde(default = "default_matches")]
    #[schemars(range(min = 1, max = 10_000))]
    max_matches: usize,
    /// Seconds after which it is given up: 30, if nothing is said.
    #[schemars(range(max = 3600))]
    timeout: Option<f64>,
}

fn default_matches() -> usize {
    1000
}

impl Capability for Search {
    type Args = Args;
    const NAME: &'static str = "search";
    const DESCRIPTION: &'static str =
        "Searches text files for a regular expression. Obeys .gitignore, does not follow links.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        matcher(&args.pattern)?;
        if let Some(path) = &args.path {
            arguments::path("path", path)?;
        }
        arguments::in_range("max_matches", args.max_matches, 1, MAX_MATCHES)?;
        arguments::timeout(args.timeout)?;
        Chosen::new(args.glob.as_deref()).map(drop)
    }

    fn plan(&self, args: &Args) -> Plan {
        Plan::Work(Needs {
            timeout: arguments::timeout_or_default(args.timeout),
            ..Needs::READS
        })
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let invalid = |invalid: Invalid| Failure::new(invalid.to_string());
        let path = args.path.as_ref().map_or(Path::new("."), as_path);
        let mut found = Found {
            matcher: matcher(&args.pattern).map_err(invalid)?,
            chosen: Chosen::new(args.glob.as_deref()).map_err(invalid)?,
            searcher: SearcherBuilder::new()
                .binary_detection(BinaryDetection::quit(0))
                .heap_limit(Some(MAX_HEAP))
                .build(),
            ignored: Ignored::default(),
            most: args.max_matches,
            matches: Vec::new(),
            files: 0,
            skipped: Vec::new(),
            truncated: false,
        };
        let searched = match context.roots.directory(path) {
            Ok((dir, real)) => walk(&dir, &mut found).map(|()| real),
            Err(not_a_directory) => {
                let place = context.roots.follow(path)?;
                let Ok(file) = entry::open_regular(&place.dir, &place.name) else {
                    return Err(not_a_directory);
                };
                let searched = found.search(&file, Path::new(&place.name));
                searched.map(|_| place.path)
            }
        };
        let real = searched.map_err(|error| Failure::io(path.display(), error))?;
        Ok(Output::new(json!({
            "path": OsText::from(real.as_os_str()),
            "matches": found.matches,
            "files_searched": found.files,
            "files_skipped": found.skipped,
            "truncated": found.truncated,
        })))
    }
}

fn matcher(pattern: &str) -> Result<RegexMatcher, Invalid> {
    RegexMatcherBuilder::new()
        .line_terminator(Some(b'\n'))
        .build(pattern)
        .map_err(|error| Invalid::new("pattern", error.to_string()))
}

struct Found {
    matcher: RegexMatcher,
    chosen: Chosen,
    searcher: Searcher,
    ignored: Ignored,
    most: usize,
    matches: Vec<Value>,
    files: u64,
    /// Files and directories that could not be read.
    skipped: Vec<OsText>,
    truncated: bool,
}

impl Found {
    fn search(&mut self, file: &File, path: &Path) -> io::Result<Next> {
        self.files += 1;
        let mut lines = Lines {
            path: OsText::from(path.as_os_str()),
            matcher: &self.matcher,
            most: self.most,
            matches: &mut self.matches,
            truncated: &mut self.truncated,
        };
        self.searcher.search_file(&self.matcher, file, &mut lines)?;
        Ok(if self.truncated { Next::Stop } else { Next::On })
    }
}

impl Visitor for Found {
    fn enter(&mut self, dir: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
        self.ignored.enter(dir, path);
        Ok(())
    }

    fn leave(&mut self) {
        self.ignored.leave();
    }

    fn visit(&mut self, visit: &Visit<'_>) -> io::Result<Next> {
        let kind = visit.kind();
        let is_dir = kind == FileType::Directory;
        if visit.name == ".git" || self.ignored.is(visit.path, is_dir) {
            return Ok(Next::Past);
        }
        if kind != FileType::RegularFile || !self.chosen.is(visit.path) {
            return Ok(Next::On);
        }
        let searched = entry::open_regular(visit.dir, visit.name)
            .and_then(|file| self.search(&file, visit.path));
        Ok(searched.unwrap_or_else(|_| {
            self.skipped.push(OsText::from(visit.path.as_os_str()));
            Next::On
        }))
    }

    fn closed(&mut self, path: &Path, _: &io::Error) {
        self.skipped.push(OsText::from(path.as_os_str()));
    }
}

struct Lines<'a> {
    path: OsText,
    matcher: &'a RegexMatcher,
    most: usize,
    matches: &'a mut Vec<Value>,
    truncated: &'a mut bool,
}

impl Sink for Lines<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        use grep_matcher::Matcher as _;
        if self.matches.len() == self.most {
            *self.truncated = true;
            return Ok(false);
        }
        let line = found.bytes().strip_suffix(b"\n").unwrap_or(found.bytes());
        let column = self.matcher.find(line).ok().flatten().map(|at| at.start());
        let shown = &line[..line.len().min(MAX_LINE)];
        self.matches.push(json!({
            "path": self.path,
            "line": found.line_number(),
            "column": column.map(|column| column + 1),
            "text": String::from_utf8_lossy(shown),
        }));
        Ok(true)
    }
}
