//! Secrets that are known by their shape.

use super::span::Spans;

/// A secret that begins with something that nothing else begins with.
pub(super) struct Token {
    pub(super) prefix: &'static str,
    rule: &'static str,
    /// What may follow the prefix.
    alphabet: Alphabet,
    /// How many of it at least.
    least: usize,
    /// How many at most; more is something else.
    most: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Alphabet {
    /// Upper case and digits.
    Upper,
    /// Lower-case hexadecimal digits.
    Hex,
    /// Letters and digits.
    Alnum,
    /// And `_`.
    Word,
    /// And `-`.
    Url,
    /// And `.`.
    Dotted,
    /// As `Url`, and both cases and a digit must be there: for prefixes that also begin ordinary words.
    Mixed,
}

impl Alphabet {
    fn has(self, byte: u8) -> bool {
        match self {
            Alphabet::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Alphabet::Hex => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
            Alphabet::Alnum => byte.is_ascii_alphanumeric(),
            Alphabet::Word => byte.is_ascii_alphanumeric() || byte == b'_',
            Alphabet::Url | Alphabet::Mixed => {
                byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
            }
            Alphabet::Dotted => byte.is_ascii_alphanumeric() || b"_-.".contains(&byte),
        }
    }
}

const fn token(
    prefix: &'static str,
    rule: &'static str,
    alphabet: Alphabet,
    least: usize,
    most: usize,
) -> Token {
    Token {
        prefix,
        rule,
        alphabet,
        least,
        most,
    }
}

/// No limit; so much is looked at to decide.
const ANY: usize = 512;

/// Taken from what the issuers publish.
pub(super) const TOKENS: &[Token] = &[
    token("AKIA", "aws_key", Alphabet::Upper, 16, 16),
    token("ASIA", "aws_key", Alphabet::Upper, 16, 16),
    token("ABIA", "aws_key", Alphabet::Upper, 16, 16),
    token("ACCA", "aws_key", Alphabet::Upper, 16, 16),
    token("ABSKQmVkcm9ja", "aws_key", Alphabet::Alnum, 40, ANY),
    token("AIza", "gcp_key", Alphabet::Url, 35, 35),
    token("ya29.", "gcp_key", Alphabet::Dotted, 20, ANY),
    token("GOCSPX-", "gcp_key", Alphabet::Url, 20, 40),
    token("ghp_", "github_token", Alphabet::Alnum, 36, 255),
    token("gho_", "github_token", Alphabet::Alnum, 36, 255),
    token("ghu_", "github_token", Alphabet::Alnum, 36, 255),
    token("ghs_", "github_token", Alphabet::Dotted, 36, ANY),
    token("ghr_", "github_token", Alphabet::Alnum, 36, 255),
    token("github_pat_", "github_token", Alphabet::Word, 36, 255),
    token("glpat-", "gitlab_token", Alphabet::Dotted, 20, 300),
    token("gldt-", "gitlab_token", Alphabet::Url, 20, 64),
    token("glrt-", "gitlab_token", Alphabet::Dotted, 20, 300),
    token("glptt-", "gitlab_token", Alphabet::Url, 20, 64),
    token("glcbt-", "gitlab_token", Alphabet::Url, 20, 64),
    token("gloas-", "gitlab_token", Alphabet::Url, 20, 80),
    token("xoxb-", "slack_token", Alphabet::Url, 10, 300),
    token("xoxp-", "slack_token", Alphabet::Url, 10, 300),
    token("xoxa-", "slack_token", Alphabet::Url, 10, 300),
    token("xoxr-", "slack_token", Alphabet::Url, 10, 300),
    token("xoxs-", "slack_token", Alphabet::Url, 10, 300),
    token("xoxe-", "slack_token", Alphabet::Url, 10, 300),
    token("xoxe.xox", "slack_token", Alphabet::Dotted, 20, 300),
    token("xapp-", "slack_token", Alphabet::Mixed, 20, 300),
    token("npm_", "npm_token", Alphabet::Alnum, 36, 36),
    token("pypi-AgE", "pypi_token", Alphabet::Url, 50, ANY),
    token("sk-ant-", "anthropic_key", Alphabet::Url, 20, ANY),
    token("sk-", "openai_key", Alphabet::Mixed, 20, ANY),
    token("sk_live_", "stripe_key", Alphabet::Word, 16, 255),
    token("sk_test_", "stripe_key", Alphabet::Word, 16, 255),
    token("rk_live_", "stripe_key", Alphabet::Word, 16, 255),
    token("rk_test_", "stripe_key", Alphabet::Word, 16, 255),
    token("whsec_", "stripe_key", Alphabet::Alnum, 24, 255),
    token("hf_", "huggingface_token", Alphabet::Alnum, 30, 40),
    token("hvs.", "vault_token", Alphabet::Url, 24, ANY),
    token("dop_v1_", "digitalocean_token", Alphabet::Hex, 64, 64),
    token("dckr_pat_", "docker_token", Alphabet::Url, 20, 64),
    token("shpat_", "shopify_token", Alphabet::Hex, 32, 32),
    token("ATATT3", "atlassian_token", Alphabet::Url, 50, ANY),
    token("AGE-SECRET-KEY-1", "age_key", Alphabet::Upper, 58, 58),
    token("lin_api_", "linear_key", Alphabet::Alnum, 32, 64),
    token("gsk_", "groq_key", Alphabet::Alnum, 40, 64),
    token("xai-", "xai_key", Alphabet::Mixed, 40, 100),
];

/// A shape that takes a closer look: text, start and end of the marker, results.
type Shape = fn(&[u8], usize, usize, &mut Spans<'_>);

pub(super) const SHAPES: &[(&str, Shape)] = &[
    ("eyJ", jwt),
    ("-----BEGIN", private_key),
    ("PRIVATE KEY", private_key_end),
    ("://", userinfo),
    ("authorization", authorization),
    ("cookie:", header),
    ("bearer", bearer),
    ("hooks.slack.com/services/", webhook),
    ("SG.", sendgrid),
    ("Q~", azure_secret),
    ("sig=", azure_signature),
];

/// A token of the table.
pub(super) fn token_at(text: &[u8], start: usize, token: &Token) -> Option<usize> {
    let rest = text[start..].strip_prefix(token.prefix.as_bytes())?;
    // A longer prefix begins with this one and has a row of its own.
    let longer = token.prefix == "sk-" && rest.starts_with(b"ant-");
    if longer || (start > 0 && text[start - 1].is_ascii_alphanumeric()) {
        return None;
    }
    // No more is looked at than it takes to decide, so that many prefixes in a row cost no more than they should.
    let seen = &rest[..rest.len().min(token.most.saturating_add(1))];
    let mut run = run(seen, |byte| token.alphabet.has(byte));
    if run < token.least || (run > token.most && token.most < ANY) {
        return None;
    }
    if token.alphabet == Alphabet::Mixed {
        let run = &rest[..run];
        let has = |test: fn(&u8) -> bool| run.iter().any(test);
        let mixed = has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase);
        if !mixed || !has(u8::is_ascii_digit) {
            return None;
        }
    }
    run += self::run(&rest[run..], |byte| token.alphabet.has(byte));
    Some(start + token.prefix.len() + without_dots(&rest[..run]))
}

/// As [`token_at`], into the results.
pub(super) fn token_found(text: &[u8], start: usize, token: &Token, spans: &mut Spans<'_>) {
    if let Some(end) = token_at(text, start, token) {
        spans.add(start, end, token.rule);
    }
}

fn run(text: &[u8], test: impl Fn(u8) -> bool) -> usize {
    let end = text.iter().position(|&byte| !test(byte));
    end.unwrap_or(text.len())
}

/// How long it is without the full stop of the sentence around it.
fn without_dots(run: &[u8]) -> usize {
    let last = run.iter().rposition(|&byte| byte != b'.');
    last.map_or(0, |at| at + 1)
}

fn run_back(text: &[u8], end: usize, test: impl Fn(u8) -> bool) -> usize {
    let before = text[..end].iter().rposition(|&byte| !test(byte));
    before.map_or(0, |at| at + 1)
}

/// Three parts in base64url of which the first is a JSON object.
fn jwt(text: &[u8], start: usize, _: usize, spans: &mut Spans<'_>) {
    if !text[start..].starts_with(b"eyJ") || (start > 0 && Alphabet::Url.has(text[start - 1])) {
        return;
    }
    let part = |at: usize| at + run(&text[at..], |byte| Alphabet::Url.has(byte));
    let header = part(start);
    if header - start < 10 || text.get(header) != Some(&b'.') {
        return;
    }
    let payload = part(header + 1);
    if payload - header < 10 {
        return;
    }
    let mut end = payload;
    // A signature, or the three further parts of an encrypted one.
    while text.get(end) == Some(&b'.') && text.get(end + 1).is_some_and(|&b| Alphabet::Url.has(b)) {
        end = part(end + 1);
    }
    spans.add(start, end, "jwt");
}

/// From BEGIN to END, or to the end of the text.
fn private_key(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let label = run(&text[end..], |byte| {
        byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b' '
    });
    let name = &text[end..end + label];
    let behind = end + label;
    let whole = text[behind..].starts_with(b"-----");
    if memchr::memmem::find(name, b"PRIVATE KEY").is_none() || !(whole || behind == text.len()) {
        return;
    }
    let close = memchr::memmem::find(&text[behind..], b"-----END")
        .map(|at| behind + at + b"-----END".len())
        .map(|at| {
            let label = run(&text[at..], |byte| {
                byte.is_ascii_uppercase() || byte == b' '
            });
            let dashes = run(&text[at + label..], |byte| byte == b'-');
            at + label + dashes.min(5)
        });
    spans.add(start, close.unwrap_or(text.len()), "private_key");
}

/// The end of a private key whose beginning is not there.
fn private_key_end(text: &[u8], start: usize, _: usize, spans: &mut Spans<'_>) {
    const LABEL: usize = 40;
    let from = start.saturating_sub(LABEL);
    let label = run_back(&text[from..], start - from, |byte| {
        byte.is_ascii_uppercase() || byte == b' '
    });
    let label = from + label;
    if !text[..label].ends_with(b"-----") || !text[label..].starts_with(b"END ") {
        return;
    }
    let end = label - b"-----".len();
    let base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=\\ \t\r\n".contains(&byte);
    let body = run_back(text, end, base64);
    if end - body >= 16 {
        spans.add(body, end, "private_key");
    }
}

/// `scheme://user:password@host`: the host stays.
fn userinfo(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let scheme = run_back(text, start, |byte| {
        byte.is_ascii_alphanumeric() || b"+.-".contains(&byte)
    });
    let authority = run(&text[end..], |byte| {
        !byte.is_ascii_whitespace() && !b"/?#\"'`\\".contains(&byte)
    });
    let authority = &text[end..end + authority];
    let Some(at) = memchr::memrchr(b'@', authority) else {
        return;
    };
    let user = &authority[..at];
    let web = text[scheme..start]
        .to_ascii_lowercase()
        .starts_with(b"http");
    let secret = match memchr::memchr(b':', user) {
        Some(colon) => colon + 1 < user.len() && !user[colon + 1..].starts_with(b"$"),
        None => web && user != b"git" && !user.starts_with(b"$"),
    };
    if secret {
        spans.add(end, end + at, "userinfo");
    }
}

/// `Authorization: Scheme value`, with or without quotes around either.
fn authorization(text: &[u8], _: usize, end: usize, spans: &mut Spans<'_>) {
    let quote = |byte: u8| byte == b'"' || byte == b'\'' || byte == b'\\';
    let mut at = end + run(&text[end..], |byte| quote(byte) || byte == b' ');
    if !matches!(text.get(at), Some(b':' | b'=')) {
        return;
    }
    at += 1;
    at += run(&text[at..], |byte| {
        quote(byte) || byte == b' ' || byte == b'['
    });
    if says_where(&text[at..]) {
        return;
    }
    let value = run(&text[at..], |byte| {
        !quote(byte) && byte != b'\n' && byte != b'\r'
    });
    let line = &text[at..at + value];
    let scheme = run(line, |byte| byte.is_ascii_alphabetic());
    let schemes: [&[u8]; 8] = [
        b"basic",
        b"bearer",
        b"token",
        b"digest",
        b"negotiate",
        b"apikey",
        b"aws4",
        b"bot",
    ];
    let known = schemes.contains(&&*line[..scheme].to_ascii_lowercase());
    let skipped = match line.get(scheme) {
        Some(b' ') if known => scheme + run(&line[scheme..], |byte| byte == b' '),
        _ => 0,
    };
    secret_value(text, at + skipped, at + value, "authorization", spans);
}

/// `Cookie: …`, to the end of the line.
fn header(text: &[u8], _: usize, end: usize, spans: &mut Spans<'_>) {
    let at = end + run(&text[end..], |byte| byte == b' ');
    const LOOK: usize = 4096;
    let seen = &text[at..text.len().min(at + LOOK)];
    let mut value = run(seen, |byte| !b"\"'\\\r\n".contains(&byte));
    if value == LOOK {
        value = text.len() - at;
    }
    if value >= LOOK || memchr::memchr(b'=', &text[at..at + value]).is_some() {
        secret_value(text, at, at + value, "cookie", spans);
    }
}

fn bearer(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let at = end + run(&text[end..], |byte| byte == b' ');
    if at == end || (start > 0 && text[start - 1].is_ascii_alphanumeric()) {
        return;
    }
    let value = run(&text[at..], |byte| {
        byte.is_ascii_alphanumeric() || b"._~+/=-".contains(&byte)
    });
    let word = &text[at..at + value];
    let digits = word.iter().any(u8::is_ascii_digit);
    if value >= 8 && (digits || value >= 32) {
        secret_value(text, at, at + value, "bearer", spans);
    }
}

/// Adds a value unless it only says where the secret is.
fn secret_value(text: &[u8], start: usize, end: usize, rule: &'static str, spans: &mut Spans<'_>) {
    if !says_where(&text[start..]) {
        spans.add(start, end, rule);
    }
}

/// A variable or a template.
fn says_where(value: &[u8]) -> bool {
    value.starts_with(b"$") || value.starts_with(b"{")
}

fn webhook(text: &[u8], _: usize, end: usize, spans: &mut Spans<'_>) {
    let value = run(&text[end..], |byte| Alphabet::Url.has(byte) || byte == b'/');
    if value >= 20 {
        spans.add(end, end + value, "slack_token");
    }
}

fn sendgrid(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let exact = text[start..].starts_with(b"SG.");
    if !exact || (start > 0 && text[start - 1].is_ascii_alphanumeric()) {
        return;
    }
    let first = run(&text[end..], |byte| Alphabet::Url.has(byte));
    let second = end + first + 1;
    if first != 22 || text.get(end + first) != Some(&b'.') {
        return;
    }
    let value = run(&text[second..], |byte| Alphabet::Url.has(byte));
    if value >= 40 {
        spans.add(start, second + value, "sendgrid_key");
    }
}

/// Three characters, a digit, `Q~` and 31 to 34 more.
fn azure_secret(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_~.-".contains(&byte);
    let near = &text[start.saturating_sub(5)..start];
    let front = near.len() - run_back(near, near.len(), allowed);
    let seen = &text[end..text.len().min(end + 36)];
    let value = without_dots(&seen[..run(seen, allowed)]);
    let fits = front == 4 && text[start - 1].is_ascii_digit() && text[start] == b'Q';
    if fits && (31..=34).contains(&value) {
        spans.add(start - front, end + value, "azure_key");
    }
}

/// The signature of a shared access link.
fn azure_signature(text: &[u8], start: usize, end: usize, spans: &mut Spans<'_>) {
    if start == 0 || !b"?&; ".contains(&text[start - 1]) {
        return;
    }
    let value = run(&text[end..], |byte| {
        byte.is_ascii_alphanumeric() || b"%+/=-_".contains(&byte)
    });
    if value >= 40 {
        spans.add(end, end + value, "azure_key");
    }
}
