//! Secrets that are known by the name that they are given to: `DB_PASSWORD=x`, `"apiKey": "x"`, `--token x`.

use super::span::Spans;

/// One of these is part of every such name.
pub(super) const WORDS: &[&str] = &[
    "token",
    "secret",
    "passw",
    "passphrase",
    "passcode",
    "_pass",
    "-pass",
    "pwd",
    "apikey",
    "api_key",
    "api-key",
    "accesskey",
    "access_key",
    "access-key",
    "privatekey",
    "private_key",
    "private-key",
    "accountkey",
    "account_key",
    "account-key",
    "authkey",
    "auth_key",
    "auth-key",
    "credential",
    "_auth",
    "_key",
    "-key",
    "_pat",
];

/// How far a value is looked at to decide. One that is longer is taken for a secret, to the end of the text.
const LOOK: usize = 8 * 1024;
/// The longest name that is looked at.
const LONGEST: usize = 128;

/// How sure a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// A password: whatever follows is one.
    Password,
    /// A token or key: a number or a plain word is not one.
    Token,
}

/// Whether secrets are given to this name.
pub(super) fn secret_name(name: &[u8]) -> Option<Name> {
    let words = split(name);
    let last = words.last()?.as_slice();
    let before = words.len().checked_sub(2).map(|at| words[at].as_slice());
    let upper = !name.iter().any(u8::is_ascii_lowercase);
    let is = |list: &[&[u8]], word: &[u8]| list.contains(&word);
    const PASSWORDS: &[&[u8]] = &[
        b"password",
        b"passwd",
        b"passwort",
        b"passphrase",
        b"passcode",
        b"userpassword",
        b"pgpassword",
    ];
    if is(PASSWORDS, last) || (last == b"pwd" && words.len() > 1) {
        return Some(Name::Password);
    }
    if last == b"pass"
        && (upper || before.is_some_and(|word| is(&[b"db", b"user", b"mysql"], word)))
    {
        return Some(Name::Password);
    }
    // …SECRET…, unless it is about a secret: where it is, what it is called.
    const ABOUT: &[&[u8]] = &[
        b"name",
        b"names",
        b"id",
        b"ids",
        b"file",
        b"path",
        b"dir",
        b"arn",
        b"type",
        b"version",
        b"url",
        b"uri",
        b"ref",
        b"store",
        b"manager",
        b"mount",
        b"provider",
        b"count",
        b"rs",
        b"py",
        b"service",
        b"scan",
        b"scanner",
        b"scanning",
        b"ttl",
        b"length",
        b"env",
        b"engine",
        b"class",
        b"backend",
    ];
    let secret = words.iter().any(|word| is(&[b"secret", b"secrets"], word));
    if secret && !is(ABOUT, last) {
        return Some(Name::Token);
    }
    const OTHER_TOKENS: &[&[u8]] = &[
        b"next",
        b"page",
        b"continuation",
        b"cancellation",
        b"syntax",
        b"eos",
        b"bos",
        b"pad",
        b"unk",
        b"stop",
        b"sep",
        b"cls",
        b"mask",
        b"special",
        b"max",
        b"per",
        b"cancel",
        b"sync",
    ];
    if last == b"token" || last == b"authtoken" || last == b"accesstoken" {
        let other = before.is_some_and(|word| is(OTHER_TOKENS, word));
        return (!other).then_some(Name::Token);
    }
    const KEYS: &[&[u8]] = &[
        b"apikey",
        b"accesskey",
        b"secretkey",
        b"privatekey",
        b"accountkey",
        b"authkey",
        b"sharedaccesskey",
    ];
    const OF_KEYS: &[&[u8]] = &[
        b"api",
        b"access",
        b"private",
        b"account",
        b"auth",
        b"encryption",
        b"signing",
        b"master",
        b"deploy",
        b"subscription",
        b"storage",
        b"shared",
    ];
    const OTHER_KEYS: &[&[u8]] = &[
        b"public",
        b"pub",
        b"primary",
        b"foreign",
        b"sort",
        b"cache",
        b"partition",
        b"host",
        b"hash",
        b"sign",
        b"hot",
        b"registry",
        b"map",
        b"object",
        b"group",
        b"index",
        b"row",
        b"state",
        b"lookup",
    ];
    let key = match (last, before) {
        (b"key", Some(word)) => is(OF_KEYS, word) || (upper && !is(OTHER_KEYS, word)),
        _ => is(KEYS, last),
    };
    let other = (upper && words.len() > 1 && is(&[b"auth", b"pat"], last))
        || is(&[b"credential", b"credentials"], last)
        || name == b"_auth";
    (key || other).then_some(Name::Token)
}

/// The words of a name in lower case: parts between `_`, `-` and `.`, and where a capital begins one.
fn split(name: &[u8]) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut before = b'_';
    for &byte in name {
        let separator = !byte.is_ascii_alphanumeric();
        let hump = byte.is_ascii_uppercase() && before.is_ascii_lowercase();
        if !separator {
            match words.last_mut() {
                Some(word) if before.is_ascii_alphanumeric() && !hump => {
                    word.push(byte.to_ascii_lowercase());
                }
                _ => words.push(vec![byte.to_ascii_lowercase()]),
            }
        }
        before = byte;
    }
    words
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_-.".contains(&byte)
}

/// A name and what it is given to, as a word of a command line: `K=V`, `--name=V`. Says where the value begins.
pub(super) fn word(word: &[u8]) -> Option<usize> {
    let equals = memchr::memchr(b'=', word).filter(|&at| at <= LONGEST)?;
    let name = word[..equals].trim_ascii_start();
    if !name
        .iter()
        .all(|&byte| in_name(byte) || byte == b':' || byte == b'/')
    {
        return None;
    }
    let start = name
        .iter()
        .rposition(|byte| b":/".contains(byte))
        .map_or(0, |at| at + 1);
    secret_name(trim_dashes(&name[start..])).map(|_| equals + 1)
}

/// A flag whose value is the next word: `--password`.
pub(super) fn flag(word: &[u8]) -> Option<Name> {
    let name = trim_dashes(word);
    let dashes = word.len() - name.len();
    let flag =
        (1..=2).contains(&dashes) && name.len() > 2 && name.iter().all(|&byte| in_name(byte));
    match name {
        b"pass" if flag => Some(Name::Password),
        _ if flag => secret_name(name),
        _ => None,
    }
}

fn trim_dashes(name: &[u8]) -> &[u8] {
    let dashes = name
        .iter()
        .position(|&byte| byte != b'-')
        .unwrap_or(name.len());
    &name[dashes..]
}

/// A marker of a name was found in text: is it a name, and is something given to it?
pub(super) fn assigned(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let left = text[start.saturating_sub(LONGEST)..start].iter().rev();
    let name_start = start - left.take_while(|&&byte| in_name(byte)).count();
    let right = text[end..].iter().take(LONGEST);
    let name_end = end + right.take_while(|&&byte| in_name(byte)).count();
    let whole = &text[name_start..name_end];
    let name = trim_dashes(whole);
    let dashes = whole.len() - name.len();
    let Some(sure) = secret_name(name).or_else(|| bare_pwd(name)) else {
        return;
    };
    let (behind, closed) = skip_quote(text, name_end);
    let at = skip_blank(text, behind);
    let blank = at > behind;
    let (value_at, strict) = match text.get(at..).unwrap_or_default() {
        [b'=', b'=', ..] | [b':', b':', ..] | [b':', b'/', b'/', ..] => return,
        [b'=', b'>', ..] | [b':', b'=', ..] => (at + 2, true),
        // `K=V` is what shells and files say; `k = v` and `k: v` may as well be a program or a sentence.
        [b'=', next, ..] => (at + 1, blank || next.is_ascii_whitespace()),
        [b':', ..] => (at + 1, !closed),
        _ if (1..=2).contains(&dashes) && blank && !closed => (at, false),
        _ => return,
    };
    let flag = value_at == at;
    let at = skip_blank(text, value_at);
    let (inside, quote) = open_quote(text, at);
    let mut value_end = value_end(text, inside, quote);
    if closed && quote.is_none() {
        // A member of an object without quotes around it is a number or a word.
        let end = |byte: &u8| b",}]".contains(byte);
        let word = text[inside..value_end].iter().position(end);
        value_end = word.map_or(value_end, |at| inside + at);
    }
    let rule = if flag { "flag" } else { "variable" };
    if value_end - inside >= LOOK {
        return spans.add(inside, text.len(), rule);
    }
    let value = &text[inside..value_end];
    let quoted = quote.is_some();
    if innocent(value, sure, quoted) || (flag && (value.starts_with(b"-") || prose(value))) {
        return;
    }
    let plain = trimmed(value).iter().all(u8::is_ascii_alphabetic);
    if name.eq_ignore_ascii_case(b"pwd") && value.starts_with(b"/") {
        return;
    }
    if strict && !quoted && plain {
        return;
    }
    spans.add(inside, value_end, rule);
}

/// `Pwd=` in connection strings; `PWD=/…` of a shell is told apart by its value.
fn bare_pwd(name: &[u8]) -> Option<Name> {
    name.eq_ignore_ascii_case(b"pwd").then_some(Name::Password)
}

fn skip_blank(text: &[u8], at: usize) -> usize {
    let blanks = text[at..]
        .iter()
        .take_while(|&&byte| byte == b' ' || byte == b'\t');
    at + blanks.count()
}

/// Behind the quote that closes a name, if there is one.
fn skip_quote(text: &[u8], at: usize) -> (usize, bool) {
    match text.get(at..).unwrap_or_default() {
        [b'"' | b'\'', ..] => (at + 1, true),
        [b'\\', b'"', ..] => (at + 2, true),
        _ => (at, false),
    }
}

/// Behind the quote that opens a value, and which one it is.
fn open_quote(text: &[u8], at: usize) -> (usize, Option<&'static [u8]>) {
    match text.get(at..).unwrap_or_default() {
        [b'"', ..] => (at + 1, Some(b"\"")),
        [b'\'', ..] => (at + 1, Some(b"'")),
        [b'\\', b'"', ..] => (at + 2, Some(b"\\\"")),
        _ => (at, None),
    }
}

/// To the closing quote, which a backslash may hide, or as far as a bare word goes. At most [`LOOK`] bytes.
fn value_end(text: &[u8], start: usize, quote: Option<&[u8]>) -> usize {
    let most = text.len().min(start + LOOK);
    let Some(quote) = quote else {
        let bare = |byte: &u8| !byte.is_ascii_whitespace() && !b"\"'`;&|)<>".contains(byte);
        // A placeholder holds what would end a word.
        let known = match text[start..most].starts_with(b"<redacted:") {
            true => memchr::memchr(b'>', &text[start..most]).map_or(0, |at| at + 1),
            false => 0,
        };
        let rest = &text[start + known..most];
        return start + known + rest.iter().take_while(|byte| bare(byte)).count();
    };
    let mut at = start;
    while at < most {
        if text[at..].starts_with(quote) {
            return at;
        }
        at += if text[at] == b'\\' { 2 } else { 1 };
    }
    most
}

/// For a value of a member of an object: whether it is one that would be kept secret.
pub(super) fn given(value: &[u8], name: Name) -> bool {
    let plain =
        name == Name::Token && value.len() < 16 && value.iter().all(u8::is_ascii_alphabetic);
    !plain && !innocent(value, name, true)
}

/// What is given to such names and is no secret: nothing, a switch, a reference to where the secret is, a type, a call.
fn innocent(value: &[u8], name: Name, quoted: bool) -> bool {
    const WORDS: &[&[u8]] = &[
        b"true",
        b"false",
        b"null",
        b"none",
        b"nil",
        b"undefined",
        b"yes",
        b"no",
        b"str",
        b"string",
        b"bool",
        b"int",
        b"bytes",
        b"option",
        b"optional",
        b"required",
        b"any",
        b"number",
        b"object",
    ];
    let lower = trimmed(value).to_ascii_lowercase();
    let reference = value.starts_with(b"$") || value.starts_with(b"{{") || value.starts_with(b"%");
    let shown = value.iter().all(|byte| b"*.xX?_-".contains(byte));
    let example = value.first() == Some(&b'<') && !value.starts_with(b"<redacted:");
    let code = !quoted && value.iter().any(|byte| b"([{".contains(byte));
    let number = name == Name::Token && value.iter().all(u8::is_ascii_digit) && value.len() < 16;
    shown || reference || example || code || number || WORDS.contains(&&*lower)
}

/// Without what a sentence or a list puts behind a word.
fn trimmed(value: &[u8]) -> &[u8] {
    let kept = value.iter().rposition(|byte| !b",.:".contains(byte));
    &value[..kept.map_or(0, |at| at + 1)]
}

/// Words that follow a flag in a sentence about it.
fn prose(value: &[u8]) -> bool {
    const WORDS: &[&[u8]] = &[
        b"to",
        b"and",
        b"or",
        b"is",
        b"for",
        b"with",
        b"the",
        b"flag",
        b"option",
        b"argument",
        b"in",
        b"on",
        b"from",
        b"if",
        b"when",
        b"was",
        b"must",
        b"can",
        b"should",
        b"instead",
        b"not",
        b"as",
    ];
    WORDS.contains(&value)
}
