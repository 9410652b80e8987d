//! From a text to its sentences, and from a sentence to words. Code blocks, quotations and questions make no claims.

/// The longest text that is looked at; what follows is passed over.
const TEXT_MAX: usize = 256 * 1024;
/// A sentence with more words than this is no sentence.
const WORDS_MAX: usize = 200;

/// A word of a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Word<'a> {
    /// In small letters, without punctuation around it.
    Plain(String),
    /// What stands between backticks or quotation marks, as it is.
    Quoted(&'a str),
    /// A name of a file without quotation marks, as it is.
    Path(&'a str),
    /// What divides a sentence: a comma, a colon, a dash, a bracket.
    Break,
}

impl Word<'_> {
    pub(super) fn is(&self, word: &str) -> bool {
        matches!(self, Word::Plain(plain) if plain == word)
    }

    pub(super) fn is_one_of(&self, words: &[&str]) -> bool {
        matches!(self, Word::Plain(plain) if words.contains(&plain.as_str()))
    }

    /// The name of a file, quoted or not.
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            Word::Path(path) => Some(path),
            Word::Quoted(text) if looks_like_path(text) => Some(text),
            _ => None,
        }
    }
}

/// A sentence, where it stands, and its words.
#[derive(Debug, Clone)]
pub(super) struct Sentence<'a> {
    /// From 1.
    pub(super) line: u64,
    pub(super) text: &'a str,
    pub(super) words: Vec<Word<'a>>,
}

/// The sentences of a text that could claim something.
pub(super) fn sentences(text: &str) -> Vec<Sentence<'_>> {
    let text = match text.char_indices().nth(TEXT_MAX) {
        Some((end, _)) => &text[..end],
        None => text,
    };
    let mut found = Vec::new();
    let mut fence = None;
    for (number, line) in (1..).zip(text.lines()) {
        let start = line.trim_start();
        let marks = ["```", "~~~"]
            .into_iter()
            .find(|mark| start.starts_with(mark));
        match (fence, marks) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (Some(_), _) => {}
            // Somebody else's words.
            (None, None) if start.starts_with('>') => {}
            (None, None) => {
                let parts = split(without_marker(start)).into_iter();
                let parts = parts.filter(|part| !part.ends_with('?'));
                found.extend(parts.filter_map(|part| sentence(number, part)));
            }
        }
    }
    found
}

fn sentence(line: u64, text: &str) -> Option<Sentence<'_>> {
    let words = words(text);
    let fits = !words.is_empty() && words.len() <= WORDS_MAX;
    fits.then_some(Sentence { line, text, words })
}

/// A line of a list without what makes it one.
fn without_marker(line: &str) -> &str {
    let line = line.trim_start_matches(|c: char| {
        c.is_whitespace() || matches!(c, '-' | '*' | '+' | '#' | '•' | '|') || is_symbol(c)
    });
    let digits = line.len() - line.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let rest = &line[digits..];
    match digits > 0 && (rest.starts_with(". ") || rest.starts_with(") ")) {
        true => rest[2..].trim_start(),
        false => line.strip_prefix("[x] ").unwrap_or(line),
    }
}

/// Ticks, crosses and little pictures.
fn is_symbol(c: char) -> bool {
    matches!(c, '\u{2190}'..='\u{2bff}' | '\u{fe0f}' | '\u{1f000}'..='\u{1ffff}')
}

/// Divides a line at the ends of sentences, outside of quotations.
fn split(line: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut quote) = (0, None);
    let mut chars = line.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None, '`' | '"' | '“') => quote = Some(closing(c)),
            (Some(end), c) if c == end => quote = None,
            (None, '.' | '!' | '?' | ';') => {
                let next = chars.peek().map(|&(_, next)| next);
                if next.is_none_or(char::is_whitespace) {
                    // A question keeps its mark.
                    let end = if c == '?' { at + 1 } else { at };
                    parts.push(line[start..end].trim());
                    start = at + c.len_utf8();
                }
            }
            _ => {}
        }
    }
    parts.push(line[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

fn closing(open: char) -> char {
    match open {
        '“' => '”',
        other => other,
    }
}

fn words(sentence: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut rest = sentence;
    while let Some(first) = rest.chars().next() {
        if matches!(first, '`' | '"' | '“') {
            let inside = &rest[first.len_utf8()..];
            let Some(end) = inside.find(closing(first)) else {
                // A quotation without an end: nobody knows whose words these are.
                words.push(Word::Break);
                return words;
            };
            words.push(Word::Quoted(inside[..end].trim()));
            rest = &inside[end + closing(first).len_utf8()..];
            continue;
        }
        let end = rest
            .find(|c: char| c.is_whitespace() || matches!(c, '`' | '"' | '“'))
            .unwrap_or(rest.len());
        if end == 0 {
            rest = &rest[first.len_utf8()..];
            continue;
        }
        plain(&rest[..end], &mut words);
        rest = &rest[end..];
    }
    words
}

/// A word between blanks: what divides before and after it, and itself.
fn plain<'a>(text: &'a str, words: &mut Vec<Word<'a>>) {
    let divides = |c: char| {
        matches!(
            c,
            ',' | ':' | '(' | ')' | '[' | ']' | '{' | '}' | '—' | '–' | '-'
        )
    };
    let around = |c: char| {
        divides(c) || matches!(c, '*' | '_' | '\'' | '’' | '‘' | '!' | '.') || is_symbol(c)
    };
    let front = text.trim_start_matches(|c: char| around(c) && c != '.' && c != '_');
    let inner = front.trim_end_matches(around);
    let (before, after) = (&text[..text.len() - front.len()], &front[inner.len()..]);
    if before.contains(divides) {
        words.push(Word::Break);
    }
    if looks_like_path(inner) {
        words.push(Word::Path(inner));
    } else if !inner.is_empty() {
        words.push(Word::Plain(inner.to_lowercase().replace('’', "'")));
    }
    if after.contains(divides) {
        words.push(Word::Break);
    }
}

/// Endings by which a name without a directory is known for a file. A member of a program's object looks much the same.
const ENDINGS: &[&str] = &[
    "bat", "c", "cc", "cfg", "conf", "cpp", "cs", "css", "csv", "cxx", "env", "go", "gradle", "h",
    "hpp", "html", "ini", "ipynb", "java", "js", "json", "jsonl", "jsx", "kt", "lock", "log",
    "lua", "md", "mjs", "mk", "ndjson", "out", "patch", "php", "pl", "png", "proto", "ps1", "py",
    "pyi", "rb", "rs", "rst", "scss", "sh", "sql", "svg", "swift", "toml", "ts", "tsx", "txt",
    "xml", "yaml", "yml", "zig",
];
/// Names that are files whatever they end in.
const NAMES: &[&str] = &[
    ".env",
    ".gitignore",
    ".dockerignore",
    ".editorconfig",
    "CHANGELOG",
    "Dockerfile",
    "Justfile",
    "LICENSE",
    "Makefile",
    "README",
    "Rakefile",
];

/// Whether a word is the name of a file or a directory, and nothing else.
pub(super) fn looks_like_path(text: &str) -> bool {
    let plain = |c: char| c.is_alphanumeric() || "_-./+@~#%=,".contains(c);
    let odd =
        text.contains("//") || text.contains("...") || text.starts_with('-') || text.contains("::");
    if text.is_empty()
        || odd
        || !text.chars().all(plain)
        || !text.contains(|c: char| c.is_alphanumeric())
    {
        return false;
    }
    if NAMES.contains(&text) {
        return true;
    }
    match text.trim_end_matches('/').rsplit_once('/') {
        // `and/or` and `1/2` are words; a directory of words only is told by its slash at the end.
        Some((folder, name)) => {
            let rooted = text.starts_with('/')
                || text.starts_with("./")
                || text.starts_with("../")
                || text.starts_with("~/");
            rooted || text.ends_with('/') || has_ending(name) || folder.contains(['.', '_', '/'])
        }
        None => text.ends_with('/') || has_ending(text),
    }
}

fn has_ending(name: &str) -> bool {
    let ending = name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty());
    ending.is_some_and(|(_, ending)| ENDINGS.contains(&ending)) || NAMES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<&str> {
        sentences(text)
            .iter()
            .map(|sentence| sentence.text)
            .collect()
    }

    #[test]
    fn sentences_end_where_people_end_them() {
        assert_eq!(
            texts("I ran `a. b`. Then: x.py is new! Is it? Done; yes"),
            ["I ran `a. b`", "Then: x.py is new", "Done", "yes"]
        );
        assert_eq!(
            texts("- ✅ All good\n1. one\n## Two"),
            ["All good", "one", "Two"]
        );
    }

    #[test]
    fn code_and_the_words_of_others_claim_nothing() {
        let text = "before\n```\nAll tests pass.\n```\n> All tests pass.\nafter";
        assert_eq!(texts(text), ["before", "after"]);
        assert_eq!(texts("~~~\n```\nx\n~~~\ny"), ["y"]);
    }

    #[test]
    fn words_and_what_divides_them() {
        let words = words("I've changed **src/a.rs**, `b c` (and More).");
        let plain = |word: &str| Word::Plain(word.into());
        assert_eq!(
            words,
            [
                plain("i've"),
                plain("changed"),
                Word::Path("src/a.rs"),
                Word::Break,
                Word::Quoted("b c"),
                Word::Break,
                plain("and"),
                plain("more"),
                Word::Break,
            ]
        );
    }

    #[test]
    fn names_of_files_and_other_names() {
        for path in [
            "src/",
            "a.rs",
            "src/a",
            "./x",
            "/etc/passwd",
            ".env",
            "Makefile",
            "a_b/c",
            "~/.bashrc",
        ] {
            assert_eq!(looks_like_path(path), path != "src/a", "{path}");
        }
        for other in [
            "and/or",
            "Config.parse",
            "std::fs",
            "http://x/y",
            "--flag",
            "1.5",
            "e.g",
            "...",
            "a()",
            "/",
            ".",
        ] {
            assert!(!looks_like_path(other), "{other}");
        }
    }
}
