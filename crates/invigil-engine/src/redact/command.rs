//! Secrets that are known by where they stand on a command line: `sshpass -p x`, `curl -u user:x`.

use std::ops::Range;

use super::names;
use super::span::Spans;

/// A program that takes secrets behind flags whose names say nothing.
pub(super) struct Program {
    pub(super) name: &'static str,
    /// A word that must stand somewhere behind it: `docker login`.
    verb: &'static str,
    flags: &'static [(&'static str, Takes)],
}

/// What a flag takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    /// A secret, as the next word or in the same one.
    Secret,
    /// A secret, in the same word only: alone the flag means something else.
    Attached,
    /// `user:secret`.
    User,
    /// `user%secret`.
    Percent,
    /// `pass:secret`; other sources are not secret.
    Source,
    /// `name=secret`, or the name of a file.
    Cookie,
}

const fn program(
    name: &'static str,
    verb: &'static str,
    flags: &'static [(&'static str, Takes)],
) -> Program {
    Program { name, verb, flags }
}

const MYSQL: &[(&str, Takes)] = &[("-p", Takes::Attached)];
const LOGIN: &[(&str, Takes)] = &[("-p", Takes::Secret)];
const ARCHIVE: &[(&str, Takes)] = &[("-P", Takes::Secret)];
const LDAP: &[(&str, Takes)] = &[("-w", Takes::Secret)];
const MONGO: &[(&str, Takes)] = &[("-p", Takes::Secret)];

pub(super) const PROGRAMS: &[Program] = &[
    program(
        "curl",
        "",
        &[
            ("-u", Takes::User),
            ("--user", Takes::User),
            ("-U", Takes::User),
            ("--proxy-user", Takes::User),
            ("-b", Takes::Cookie),
            ("--cookie", Takes::Cookie),
            ("--oauth2-bearer", Takes::Secret),
        ],
    ),
    program("sshpass", "", &[("-p", Takes::Secret)]),
    program("mysql", "", MYSQL),
    program("mysqldump", "", MYSQL),
    program("mysqladmin", "", MYSQL),
    program("mariadb", "", MYSQL),
    program("mongosh", "", MONGO),
    program("mongodump", "", MONGO),
    program("docker", "login", LOGIN),
    program("podman", "login", LOGIN),
    program("buildah", "login", LOGIN),
    program("skopeo", "login", LOGIN),
    program("helm", "login", LOGIN),
    program("redis-cli", "", &[("-a", Takes::Secret)]),
    program("ldapsearch", "", LDAP),
    program("ldapmodify", "", LDAP),
    program("ldapadd", "", LDAP),
    program(
        "smbclient",
        "",
        &[("-U", Takes::Percent), ("--user", Takes::Percent)],
    ),
    program(
        "openssl",
        "",
        &[
            ("-passin", Takes::Source),
            ("-passout", Takes::Source),
            ("-pass", Takes::Source),
            ("-k", Takes::Secret),
        ],
    ),
    program("zip", "", ARCHIVE),
    program("unzip", "", ARCHIVE),
    program("7z", "", &[("-p", Takes::Attached)]),
    program("7za", "", &[("-p", Takes::Attached)]),
    program("sqlcmd", "", &[("-P", Takes::Secret)]),
    program(
        "keytool",
        "",
        &[("-storepass", Takes::Secret), ("-keypass", Takes::Secret)],
    ),
];

fn known(name: &[u8]) -> Option<&'static Program> {
    let base = name.rsplit(|&byte| byte == b'/').next()?;
    PROGRAMS
        .iter()
        .find(|program| program.name.as_bytes() == base)
}

/// A secret in the words of a command: in which word, where, by which rule.
type Value = (usize, Range<usize>, &'static str);

/// The secrets that only the order of the words shows.
pub(super) fn values(words: &[&[u8]]) -> Vec<Value> {
    let mut found = Vec::new();
    for (index, word) in words.iter().enumerate() {
        if let Some(start) = names::word(word).filter(|&start| !switch(&word[start..])) {
            found.push((index, start..word.len(), "variable"));
        }
        let next = words.get(index + 1);
        if names::flag(word).is_some()
            && let Some(next) = next.filter(|next| !next.starts_with(b"-"))
            && !switch(next)
        {
            found.push((index + 1, 0..next.len(), "flag"));
        }
    }
    // The program may stand behind others: env, sudo, timeout.
    for (index, word) in words.iter().enumerate() {
        if let Some(program) = known(word) {
            flags(program, words, index, &mut found);
        }
    }
    found
}

fn switch(word: &[u8]) -> bool {
    matches!(word, b"" | b"true" | b"false" | b"yes" | b"no" | b"none")
}

fn flags(program: &Program, words: &[&[u8]], at: usize, found: &mut Vec<Value>) {
    let rest = &words[at + 1..];
    let verb = program.verb.as_bytes();
    if !verb.is_empty() && !rest.contains(&verb) {
        return;
    }
    for (offset, word) in rest.iter().enumerate() {
        let index = at + 1 + offset;
        for &(flag, takes) in program.flags {
            let long = flag.len() > 2;
            let tail = match word.strip_prefix(flag.as_bytes()) {
                Some(tail) => tail,
                // Several flags in one word, the one with the value last: `-sSu`.
                None if takes == Takes::User && bundled(word, flag) => &[],
                None => continue,
            };
            let place = match tail {
                [] if takes == Takes::Attached => None,
                [] => rest.get(offset + 1).map(|next| (index + 1, *next, 0)),
                [b'=', value @ ..] if long => Some((index, value, flag.len() + 1)),
                _ if long => None,
                value => Some((index, value, flag.len())),
            };
            let Some((index, value, base)) = place else {
                continue;
            };
            if let Some(start) = secret_in(value, takes) {
                let end = base + value.len();
                found.push((index, base + start..end, "flag"));
            }
        }
    }
}

fn bundled(word: &[u8], flag: &str) -> bool {
    let Some(letters) = word.strip_prefix(b"-").filter(|letters| letters.len() > 1) else {
        return false;
    };
    let last = flag.strip_prefix('-').filter(|rest| rest.len() == 1);
    letters.iter().all(u8::is_ascii_alphabetic)
        && last.is_some_and(|last| letters.ends_with(last.as_bytes()))
}

/// Where the secret in a value begins.
fn secret_in(value: &[u8], takes: Takes) -> Option<usize> {
    let behind = |byte| memchr::memchr(byte, value).map(|at| at + 1);
    let start = match takes {
        Takes::Secret | Takes::Attached => Some(0),
        Takes::User => behind(b':'),
        Takes::Percent => behind(b'%'),
        Takes::Cookie => behind(b'='),
        Takes::Source => value.starts_with(b"pass:").then_some(5),
    };
    start.filter(|&start| start < value.len())
}

/// A program was named in text: the words behind it, up to the end of the command, are its arguments.
pub(super) fn in_text(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let before = start.checked_sub(1).map(|at| text[at]);
    let begins = before.is_none_or(|byte| !byte.is_ascii_alphanumeric() && !b"_-.".contains(&byte));
    let blank = |byte: &u8| byte.is_ascii_whitespace() && *byte != b'\n';
    if !begins || !text.get(end).is_some_and(blank) {
        return;
    }
    let Some(program) = known(&text[start..end]) else {
        return;
    };
    let ranges = shell_words(text, end);
    let mut words: Vec<&[u8]> = vec![&text[start..end]];
    words.extend(ranges.iter().map(|range| &text[range.clone()]));
    let mut found = Vec::new();
    flags(program, &words, 0, &mut found);
    for (index, place, rule) in found {
        let base = ranges[index - 1].start;
        let value = &text[base + place.start..base + place.end];
        // A variable says where the secret is, and a word in quotes may begin behind the flag.
        let quote = value.first().is_some_and(|byte| b"\"'".contains(byte));
        let open = usize::from(quote);
        let close = usize::from(quote && value.len() > 1 && value.last() == value.first());
        if !value[open..].starts_with(b"$") {
            spans.add(base + place.start + open, base + place.end - close, rule);
        }
    }
}

/// The words of a simple command, without the quotes around whole words; it ends where a shell ends it.
fn shell_words(text: &[u8], start: usize) -> Vec<Range<usize>> {
    const MOST: usize = 128;
    let mut words = Vec::new();
    let mut at = start;
    while words.len() < MOST {
        at += text[at..]
            .iter()
            .take_while(|byte| b" \t".contains(byte))
            .count();
        // A backslash in front of a newline goes on in the next line.
        if text[at..].starts_with(b"\\\n") {
            at += 2;
            continue;
        }
        let end = word_end(text, at);
        if end == at {
            break;
        }
        let word = &text[at..end];
        let quoted = word.len() > 1 && b"\"'".contains(&word[0]) && word.last() == Some(&word[0]);
        words.push(if quoted { at + 1..end - 1 } else { at..end });
        at = end;
    }
    words
}

fn word_end(text: &[u8], start: usize) -> usize {
    let mut at = start;
    let mut quote = None;
    while let Some(&byte) = text.get(at) {
        match (quote, byte) {
            (None, b' ' | b'\t' | b'\n' | b'\r' | b';' | b'|' | b'&' | b')' | b'`') => return at,
            (None, b'\'' | b'"') => quote = Some(byte),
            (Some(b'"') | None, b'\\') => at += 1,
            (Some(open), _) if open == byte => quote = None,
            _ => {}
        }
        at += 1;
    }
    text.len()
}
