//! The lines of strace: calls that were cut in two are put together, and arguments are taken apart.

use std::collections::HashMap;

use super::fact;
use super::resolve::join as join_path;

/// What strace says of one task.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Call {
        task: u32,
        name: String,
        arguments: Vec<String>,
        result: Return,
    },
    Exit {
        task: u32,
        /// `0`, or `signal 9`.
        how: String,
    },
}

/// What a call returned.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// A number, and what strace says of the descriptor that it is.
    Number(i64, Option<String>),
    Error(String),
    /// Interrupted inside of the kernel, which tries again.
    Restarted,
    /// The task ended inside of the call.
    Unknown,
}

impl Return {
    pub(super) fn text(&self) -> String {
        match self {
            Return::Number(..) => "ok".into(),
            Return::Error(name) => match name.as_str() {
                "EOPNOTSUPP" => "ENOTSUP".into(),
                name => name.into(),
            },
            Return::Restarted | Return::Unknown => "unknown".into(),
        }
    }
}

/// All lines of a log.
pub(super) fn join(log: &str) -> Vec<Line> {
    let mut unfinished: HashMap<u32, String> = HashMap::new();
    let mut lines = Vec::new();
    for line in log.lines() {
        let Some((task, rest)) = line.trim_start().split_once(' ') else {
            continue;
        };
        let Ok(task) = task.parse() else {
            continue;
        };
        let rest = rest.trim_start();
        if let Some(begin) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(task, begin.trim_end().to_owned());
        } else if let Some((_, end)) = rest
            .strip_prefix("<... ")
            .and_then(|rest| rest.split_once(" resumed>"))
        {
            let begin = unfinished.remove(&task).unwrap_or_default();
            lines.extend(call(task, &format!("{begin}{end}")));
        } else if rest.starts_with("+++ ") {
            lines.extend(exit(task, rest));
        } else if !rest.starts_with("--- ") {
            lines.extend(call(task, rest));
        }
    }
    lines
}

fn exit(task: u32, text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split(' ').collect();
    let how = match words[..] {
        ["+++", "exited", "with", code, ..] => code.to_owned(),
        ["+++", "killed", "by", signal, ..] => format!("signal {}", signal_number(signal)?),
        _ => return None,
    };
    Some(Line::Exit { task, how })
}

fn signal_number(name: &str) -> Option<u32> {
    const NAMES: [&str; 15] = [
        "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
        "PIPE", "ALRM", "TERM",
    ];
    let name = name.strip_prefix("SIG")?;
    let place = NAMES.iter().position(|known| *known == name)?;
    Some(place as u32 + 1)
}

fn call(task: u32, text: &str) -> Option<Line> {
    let (name, rest) = text.split_once('(')?;
    let (arguments, rest) = split(rest);
    let result = result(rest.trim_start().strip_prefix("= ")?)?;
    Some(Line::Call {
        task,
        name: name.to_owned(),
        arguments,
        result,
    })
}

fn result(text: &str) -> Option<Return> {
    let text = text.trim();
    if text.starts_with('?') {
        let restarts = text.contains("ERESTART");
        return Some(if restarts {
            Return::Restarted
        } else {
            Return::Unknown
        });
    }
    let word = text.split([' ', '<']).next()?;
    let number = word.parse().ok()?;
    if number == -1 {
        let name = text.split(' ').nth(1)?;
        return Some(Return::Error(name.to_owned()));
    }
    Some(Return::Number(number, file_of(text)))
}

/// Takes apart what is between parentheses, up to the one that closes, and says what is behind it.
fn split(text: &str) -> (Vec<String>, &str) {
    let (mut depth, mut angle, mut quoted) = (0, 0, false);
    let mut arguments = Vec::new();
    let mut argument = String::new();
    let mut before = ' ';
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        let mut end = false;
        if quoted {
            quoted = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if angle > 0 {
            angle += i32::from(c == '<') - i32::from(c == '>' && before != '-');
            quoted = c == '"';
        } else {
            match c {
                '"' => quoted = true,
                '<' if before.is_ascii_digit() || before == 'D' => angle = 1,
                '(' | '[' | '{' => depth += 1,
                ')' if depth == 0 => {
                    arguments.push(argument.trim().to_owned());
                    return (arguments, &text[at + 1..]);
                }
                ')' | ']' | '}' => depth -= 1,
                ',' if depth == 0 => end = true,
                _ => {}
            }
        }
        if end {
            arguments.push(std::mem::take(&mut argument).trim().to_owned());
        } else {
            argument.push(c);
        }
        before = c;
    }
    (arguments, "")
}

/// What strace says of a descriptor: `3</a/file>`, `4<TCP:[…]>`.
pub(super) fn file_of(text: &str) -> Option<String> {
    let begin = text.find('<')?;
    // strace says of descriptors, and only of them, that the file has no name any more.
    let inner = text[begin + 1..].trim_end_matches("(deleted)");
    let inner = inner.strip_suffix('>').unwrap_or(inner);
    // A device: `/dev/null<char 1:3>`.
    let inner = match inner.find("<char ").or_else(|| inner.find("<block ")) {
        Some(device) => &inner[..device],
        None => inner,
    };
    Some(unescape(inner).replace(" (deleted)", ""))
}

/// A string in quotes, as the bytes that it stands for.
pub(super) fn string(text: &str) -> String {
    let text = text.trim_end_matches("...");
    let inner = text.trim_start_matches('@').strip_prefix('"');
    inner
        .and_then(|inner| inner.strip_suffix('"'))
        .map(unescape)
        .unwrap_or_default()
}

/// An array of strings.
pub(super) fn strings(text: &str) -> Vec<String> {
    elements(text)
        .iter()
        .map(|element| string(element))
        .collect()
}

fn elements(text: &str) -> Vec<String> {
    let inner = text.strip_prefix(['[', '{']).unwrap_or(text);
    let inner = inner.strip_suffix([']', '}']).unwrap_or(inner);
    if inner.is_empty() {
        return Vec::new();
    }
    split(&format!("{inner})")).0
}

/// A field of a structure; empty if it has none of that name.
pub(super) fn field<'a>(text: &'a str, name: &str) -> &'a str {
    let Some(begin) = text.find(&format!("{name}=")) else {
        return "";
    };
    let value = &text[begin + name.len() + 1..];
    let (mut depth, mut quoted, mut before) = (0, false, ' ');
    let end = value.find(|c: char| {
        quoted ^= c == '"' && before != '\\';
        before = c;
        if quoted {
            return false;
        }
        depth += i32::from("({[".contains(c)) - i32::from(")}]".contains(c));
        depth < 0 || depth == 0 && c == ','
    });
    &value[..end.unwrap_or(value.len())]
}

pub(super) fn octal(text: &str) -> u32 {
    // `S_IFIFO|0644`
    let digits = text.rsplit('|').next().unwrap_or_default();
    u32::from_str_radix(digits, 8).unwrap_or_default()
}

/// An address as the caller gave it. None if there is none.
pub(super) fn address(text: &str, cwd: &str) -> Option<String> {
    let number = |field: &str| {
        let digits: String = field.chars().filter(char::is_ascii_digit).collect();
        fact::port(digits.parse().unwrap_or_default())
    };
    let quoted = |text: &str| text.split('"').nth(1).unwrap_or_default().to_owned();
    Some(match field(text, "sa_family") {
        "AF_INET" => format!(
            "{}:{}",
            quoted(field(text, "sin_addr")),
            number(field(text, "sin_port"))
        ),
        "AF_INET6" => {
            let ip = text
                .split_once("inet_pton(AF_INET6, ")
                .map_or("", |(_, ip)| ip);
            format!("[{}]:{}", quoted(ip), number(field(text, "sin6_port")))
        }
        "AF_UNIX" => match field(text, "sun_path") {
            "" => "unnamed".into(),
            name if name.starts_with('@') => format!("unix @{}", string(name)),
            path => format!("unix {}", join_path(cwd, &string(path))),
        },
        "AF_UNSPEC" => "unnamed".into(),
        "AF_NETLINK" => "family 16".into(),
        "AF_PACKET" => "family 17".into(),
        "" => return None,
        other => format!("family {other}"),
    })
}

/// The addresses of `sendmmsg`.
pub(super) fn addresses(text: &str, cwd: &str) -> Vec<Option<String>> {
    let messages = elements(text);
    let names = messages
        .iter()
        .map(|message| address(field(message, "msg_name"), cwd));
    names.collect()
}

/// The own address of a socket: `3<TCP:[127.0.0.1:80]>`, `4<UNIX-STREAM:[123,"/x"]>`. None if it has none.
pub(super) fn own_address(text: &str, cwd: &str) -> Option<String> {
    let socket = text.split_once('[')?.1.rsplit_once(']')?.0;
    if text.contains("<UNIX") {
        let (_, name) = socket.split_once(',')?;
        let path = string(name);
        let named = name.starts_with('@');
        return Some(if named {
            format!("unix @{path}")
        } else {
            format!("unix {}", join_path(cwd, &path))
        });
    }
    let (ip, port) = socket.rsplit_once(':')?;
    let port = fact::port(port.parse().unwrap_or_default());
    Some(format!("{ip}:{port}"))
}

/// What C's escapes stand for.
fn unescape(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' || at + 1 == bytes.len() {
            plain.push(bytes[at]);
            at += 1;
            continue;
        }
        let digits = bytes[at + 1..].iter().take(3);
        let digits = digits
            .take_while(|byte| (b'0'..=b'7').contains(byte))
            .count();
        if digits > 0 {
            let value = u32::from_str_radix(&text[at + 1..at + 1 + digits], 8);
            plain.push(value.unwrap_or_default() as u8);
            at += 1 + digits;
            continue;
        }
        plain.push(match bytes[at + 1] {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'v' => 11,
            b'f' => 12,
            other => other,
        });
        at += 2;
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_was_cut_in_two() {
        let log = "7 unlinkat(AT_FDCWD</tmp/a>, \"b\", 0 <unfinished ...>\n\
                   8 +++ exited with 3 +++\n\
                   7 <... unlinkat resumed>)           = -1 ENOENT (No such file or directory)\n";
        let expected = [
            Line::Exit {
                task: 8,
                how: "3".into(),
            },
            Line::Call {
                task: 7,
                name: "unlinkat".into(),
                arguments: ["AT_FDCWD</tmp/a>", "\"b\"", "0"].map(String::from).into(),
                result: Return::Error("ENOENT".into()),
            },
        ];
        assert_eq!(join(log), expected);
    }

    #[test]
    fn arguments_that_look_like_something_else() {
        let (arguments, rest) = split(
            "3<TCP:[1.2.3.4:5->6.7.8.9:10]>, \"a\\\", )\", [\"x\", \"y\"], {b=1, c=f(2)}) = 0",
        );
        assert_eq!(
            arguments,
            [
                "3<TCP:[1.2.3.4:5->6.7.8.9:10]>",
                "\"a\\\", )\"",
                "[\"x\", \"y\"]",
                "{b=1, c=f(2)}"
            ]
        );
        assert_eq!(rest, " = 0");
        assert_eq!(strings("[\"x\", \"y\\n\\1\"]"), ["x", "y\n\u{1}"]);
        assert_eq!(file_of("3</dev/null<char 1:3>>").unwrap(), "/dev/null");
        assert_eq!(file_of("3</a/b>").unwrap(), "/a/b");
    }

    #[test]
    fn addresses_of_all_kinds() {
        let inet = "{sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr(\"127.0.0.1\")}";
        let inet6 = "{sa_family=AF_INET6, sin6_port=htons(40000), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, \"::1\", &sin6_addr), sin6_scope_id=0}";
        assert_eq!(address(inet, "/").unwrap(), "127.0.0.1:80");
        assert_eq!(address(inet6, "/").unwrap(), "[::1]:PORT");
        assert_eq!(
            address("{sa_family=AF_UNIX, sun_path=\"s\"}", "/a").unwrap(),
            "unix /a/s"
        );
        assert_eq!(
            address("{sa_family=AF_UNIX, sun_path=@\"s\"}", "/a").unwrap(),
            "unix @s"
        );
        assert_eq!(address("NULL", "/"), None);
        assert_eq!(
            own_address("3<TCP:[127.0.0.1:80]>", "/").unwrap(),
            "127.0.0.1:80"
        );
        assert_eq!(
            own_address("3<UNIX-STREAM:[12,\"s\"]>", "/a").unwrap(),
            "unix /a/s"
        );
    }
}
