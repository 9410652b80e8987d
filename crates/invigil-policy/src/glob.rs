//! Globs over paths and names: written strictly, matched by `globset`, many at a time.
//!
//! `*` and `?` do not match `/`; `**` stands alone between slashes and is any number of directories, none too;
//! `DIR/**` is the directory and everything below it; `{a,b}` is either, and may hold slashes; `[a-z]` is one of a set;
//! `\` takes the meaning from the next character. Braces are taken apart here, so that most globs are plain texts and
//! cost a look into a hash table.

use std::ops::Range;
use std::path::PathBuf;

use globset::{Candidate, Glob, GlobBuilder, GlobMatcher, GlobSet, GlobSetBuilder};

use crate::error::Flaw;
use crate::syntax::Text;
use crate::{Places, Verdict};

/// One glob with many alternatives would make a policy slow to load and hard to read.
const MOST_ALTERNATIVES: usize = 256;

/// A rule over paths.
#[derive(Debug, Clone)]
pub(crate) struct PathGlob {
    pub(crate) globs: Vec<Glob>,
    pub(crate) shapes: Vec<Shape>,
}

/// A glob without braces, part by part.
#[derive(Debug, Clone)]
pub(crate) struct Shape(Vec<Part>);

#[derive(Debug, Clone)]
enum Part {
    AnyDepth,
    Literal(Vec<u8>),
    Pattern(GlobMatcher),
}

impl PathGlob {
    pub(crate) fn parse(text: &Text<'_>, places: &Places) -> Result<Self, Flaw> {
        let expanded = expand_places(text, places)?;
        let (mut globs, mut shapes) = (Vec::new(), Vec::new());
        for glob in alternatives(&expanded, &text.span)? {
            let shape = Shape::parse(&glob, text)?;
            // For people, a directory and what is in it are one thing.
            if let Some(directory) = glob.strip_suffix("/**") {
                let directory = if directory.is_empty() { "/" } else { directory };
                globs.push(build(directory, true, &text.span)?);
            }
            let everything = glob == "/**";
            let glob = if everything {
                "**".into()
            } else {
                one_pass(glob)
            };
            globs.push(build(&glob, true, &text.span)?);
            shapes.push(shape);
        }
        Ok(PathGlob { globs, shapes })
    }
}

impl Shape {
    fn parse(glob: &str, text: &Text<'_>) -> Result<Shape, Flaw> {
        let flaw = |message: &str, help: String| {
            let message = format!("`{}` {message}", text.text);
            Err(Flaw::new(
                text.span.clone(),
                message,
                "not a path that can be matched",
                help,
            ))
        };
        let relative = match glob.strip_prefix('/') {
            Some(rest) => rest,
            None if glob.starts_with("**/") => glob,
            None => {
                let bare = text.text.trim_start_matches("./");
                let help = format!("write `${{workspace}}/{bare}`, or `**/{bare}` for anywhere");
                return flaw("is not absolute", help);
            }
        };
        if relative.is_empty() {
            return Ok(Shape(Vec::new()));
        }
        let mut parts = Vec::new();
        for part in split_parts(relative) {
            parts.push(match part {
                "" if relative.ends_with('/') => {
                    let bare = text.text.trim_end_matches('/');
                    let help = format!("write `{bare}/**` for the directory and everything below it");
                    return flaw("ends with a slash", help);
                }
                "" => return flaw("has two slashes in a row", "write one slash".into()),
                "." | ".." => {
                    let help = "write the path as it is after resolution; rules are compared with resolved paths";
                    return flaw("has `.` or `..` in it, which no resolved path has", help.into());
                }
                "**" => Part::AnyDepth,
                part if part.contains("**") => {
                    return flaw(
                        "has `**` beside other characters",
                        "let `**` stand alone between slashes, or write `*`".into(),
                    );
                }
                part => match literal(part) {
                    Some(literal) => Part::Literal(literal.into_bytes()),
                    None => Part::Pattern(build(part, true, &text.span)?.compile_matcher()),
                },
            });
        }
        Ok(Shape(parts))
    }

    /// The file or directory outside of which nothing can match.
    pub(crate) fn root(&self) -> PathBuf {
        let mut root = PathBuf::from("/");
        for part in &self.0 {
            let Part::Literal(name) = part else { break };
            root.push(String::from_utf8_lossy(name).as_ref());
        }
        root
    }

    /// The one path that matches, if there is only one.
    pub(crate) fn only_path(&self) -> Option<PathBuf> {
        let literal = |part: &Part| matches!(part, Part::Literal(_));
        self.0.iter().all(literal).then(|| self.root())
    }

    /// Whether something below this directory could match.
    pub(crate) fn reaches_below(&self, directory: &[u8]) -> bool {
        let names: Vec<&[u8]> = directory
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
            .collect();
        reaches(&self.0, &names)
    }
}

fn reaches(parts: &[Part], names: &[&[u8]]) -> bool {
    let Some((part, rest)) = parts.split_first() else {
        return false;
    };
    let Some((name, below)) = names.split_first() else {
        return true;
    };
    match part {
        Part::AnyDepth => reaches(rest, names) || reaches(parts, below),
        Part::Literal(literal) => literal == name && reaches(rest, below),
        Part::Pattern(pattern) => {
            pattern.is_match_candidate(&Candidate::from_bytes(name)) && reaches(rest, below)
        }
    }
}

/// Slashes that are escaped or in a set do not occur: `alternatives` refuses them.
fn split_parts(glob: &str) -> impl Iterator<Item = &str> {
    glob.split('/')
}

/// The same glob in a spelling that `globset` matches together with all others. Where it sees an extension behind a star it
/// would try the globs with that extension one after the other, except for `**/*.ext`, which is a look into a table.
fn one_pass(glob: String) -> String {
    let (directory, name) = glob.rsplit_once('/').unwrap_or(("", &glob));
    let table = directory == "**" && name.starts_with("*.") && literal(&name[1..]).is_some();
    let dot = name.rfind('.').filter(|_| !name.contains(['[', '\\']));
    match dot {
        Some(dot) if !table && literal(&glob).is_none() => {
            format!("{directory}/{}[.]{}", &name[..dot], &name[dot + 1..])
        }
        _ => glob,
    }
}

/// The text that a glob matches, if it is only one.
pub(crate) fn literal(glob: &str) -> Option<String> {
    let mut text = String::new();
    let mut chars = glob.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' | '?' | '[' | '{' => return None,
            '\\' => text.push(chars.next()?),
            c => text.push(c),
        }
    }
    Some(text)
}

/// Makes a glob of a text that must be matched as it is.
pub(crate) fn escape(text: &str) -> String {
    let special = |c| matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\' | ',');
    let mut escaped = String::new();
    for c in text.chars() {
        if special(c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// A glob over names, which have no parts: `*` matches everything.
pub(crate) fn name_globs(text: &Text<'_>) -> Result<Vec<Glob>, Flaw> {
    let all = alternatives(text.text, &text.span)?.into_iter();
    all.map(|glob| build(&glob, false, &text.span)).collect()
}

fn build(glob: &str, separate: bool, span: &Range<usize>) -> Result<Glob, Flaw> {
    GlobBuilder::new(glob)
        .literal_separator(separate)
        .backslash_escape(true)
        .build()
        .map_err(|error| {
            let message = format!("`{glob}` is not a glob: {}", error.kind());
            let help = "a glob has *, **, ?, {a,b} and [a-z]; write \\[ for a bracket that stands for itself";
            Flaw::new(span.clone(), message, "not a glob", help)
        })
}

fn expand_places(text: &Text<'_>, places: &Places) -> Result<String, Flaw> {
    let glob = text.text;
    let flaw = |message: String, help: &str| Flaw::new(text.span.clone(), message, "here", help);
    let known = "~, ${home}, ${workspace} and ${tmp} may stand at the beginning of a path";
    if glob.is_empty() {
        return Err(flaw(
            "an empty path matches nothing".into(),
            "write a path or a glob, or remove it",
        ));
    }
    let (place, rest) = if let Some(rest) = glob.strip_prefix('~') {
        (Some(("~", &places.home)), rest)
    } else if let Some(rest) = glob.strip_prefix("${home}") {
        (Some(("${home}", &places.home)), rest)
    } else if let Some(rest) = glob.strip_prefix("${workspace}") {
        (Some(("${workspace}", &places.workspace)), rest)
    } else if let Some(rest) = glob.strip_prefix("${tmp}") {
        (Some(("${tmp}", &places.tmp)), rest)
    } else {
        (None, glob)
    };
    if rest.contains("${") {
        return Err(flaw(
            format!("`{glob}` has a variable that is not known here"),
            known,
        ));
    }
    let Some((name, place)) = place else {
        return Ok(glob.to_owned());
    };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err(flaw(
            format!("`{glob}` has no slash behind `{name}`"),
            known,
        ));
    }
    let Some(place) = place.to_str().filter(|place| place.starts_with('/')) else {
        let message = format!("`{name}` is {place:?} here, which is not an absolute path of UTF-8");
        return Err(flaw(message, "write the path itself"));
    };
    Ok(format!("{}{rest}", escape(place.trim_end_matches('/'))))
}

/// Takes braces apart: `/{a,b}/c` is `/a/c` and `/b/c`.
pub(crate) fn alternatives(glob: &str, span: &Range<usize>) -> Result<Vec<String>, Flaw> {
    let flaw = |message: &str, help: &str| {
        let message = format!("`{glob}` {message}");
        Err(Flaw::new(span.clone(), message, "not a glob", help))
    };
    let mut done = Vec::new();
    let mut pending = vec![glob.to_owned()];
    while let Some(glob) = pending.pop() {
        match first_braces(&glob) {
            Braces::None => done.push(glob),
            Braces::Open => {
                return flaw(
                    "has a brace without its pair",
                    "close it, or write \\{ or \\} for the character itself",
                );
            }
            Braces::SlashInSet => {
                return flaw(
                    "has a slash in a set or behind a backslash",
                    "put the slash outside, or use {a/b,c}",
                );
            }
            Braces::SetOpen => {
                return flaw(
                    "has a set that is not closed",
                    "close it with ], or write \\[ for the character itself",
                );
            }
            Braces::Found {
                before,
                options,
                after,
            } => {
                let spelled = options
                    .iter()
                    .rev()
                    .map(|option| format!("{before}{option}{after}"));
                pending.extend(spelled);
            }
        }
        if done.len() + pending.len() > MOST_ALTERNATIVES {
            return flaw("stands for too many paths", "write several rules");
        }
    }
    Ok(done)
}

enum Braces<'g> {
    None,
    Open,
    SetOpen,
    SlashInSet,
    Found {
        before: &'g str,
        options: Vec<&'g str>,
        after: &'g str,
    },
}

fn first_braces(glob: &str) -> Braces<'_> {
    let mut depth = 0;
    let (mut begin, mut option) = (0, 0);
    let mut options = Vec::new();
    let mut chars = glob.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some((_, '/')) => return Braces::SlashInSet,
                _ => continue,
            },
            '[' => {
                // A bracket right behind the opening one, or behind the negation, is a member of the set.
                let mut first = true;
                loop {
                    match chars.next() {
                        None => return Braces::SetOpen,
                        Some((_, '/')) => return Braces::SlashInSet,
                        Some((_, '!' | '^')) if first => continue,
                        Some((_, ']')) if !first => break,
                        Some(_) => first = false,
                    }
                }
            }
            '{' => {
                if depth == 0 {
                    (begin, option) = (at, at + 1);
                }
                depth += 1;
            }
            ',' if depth == 1 => {
                options.push(&glob[option..at]);
                option = at + 1;
            }
            '}' if depth == 0 => return Braces::Open,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    options.push(&glob[option..at]);
                    return Braces::Found {
                        before: &glob[..begin],
                        options,
                        after: &glob[at + 1..],
                    };
                }
            }
            _ => {}
        }
    }
    if depth > 0 {
        Braces::Open
    } else {
        Braces::None
    }
}

/// Many globs, each of which belongs to a rule.
#[derive(Debug, Clone, Default)]
pub(crate) struct Globs {
    set: GlobSet,
    owners: Vec<usize>,
}

impl Globs {
    pub(crate) fn new<'g>(
        globs: impl IntoIterator<Item = (&'g Glob, usize)>,
    ) -> Result<Self, globset::Error> {
        let mut set = GlobSetBuilder::new();
        let mut owners = Vec::new();
        for (glob, owner) in globs {
            set.add(glob.clone());
            owners.push(owner);
        }
        Ok(Globs {
            set: set.build()?,
            owners,
        })
    }

    pub(crate) fn is_match(&self, candidate: &Candidate<'_>) -> bool {
        !self.owners.is_empty() && self.set.is_match_candidate(candidate)
    }

    /// Calls with the owner of each glob that matches; more than once if several of its globs do.
    pub(crate) fn each_match(&self, candidate: &Candidate<'_>, mut found: impl FnMut(usize)) {
        if self.is_match(candidate) {
            for glob in self.set.matches_candidate(candidate) {
                found(self.owners[glob]);
            }
        }
    }
}

/// Globs by what their rules say, so that the strictest verdict needs no list of matches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Judged([Globs; 3]);

impl Judged {
    pub(crate) fn new(globs: &[(Glob, Verdict, usize)]) -> Result<Self, globset::Error> {
        let of = |verdict| {
            let mine = globs.iter().filter(|(_, said, _)| *said == verdict);
            Globs::new(mine.map(|(glob, _, owner)| (glob, *owner)))
        };
        Ok(Judged([
            of(Verdict::Allow)?,
            of(Verdict::Ask)?,
            of(Verdict::Deny)?,
        ]))
    }

    pub(crate) fn strictest(&self, candidate: &Candidate<'_>) -> Option<Verdict> {
        let mut strict_first = Verdict::ALL.into_iter().rev();
        strict_first.find(|verdict| self.says(*verdict, candidate))
    }

    pub(crate) fn says(&self, verdict: Verdict, candidate: &Candidate<'_>) -> bool {
        self.0[verdict as usize].is_match(candidate)
    }

    pub(crate) fn each_match(&self, candidate: &Candidate<'_>, mut found: impl FnMut(usize)) {
        for globs in &self.0 {
            globs.each_match(candidate, &mut found);
        }
    }
}
