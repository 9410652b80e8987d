//! What a person sees: colours where there is a terminal, one look must be enough.

use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use invigil_schema::OsText;

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default().bold();

/// A line of Invigil's own on stderr. If it cannot be written there is nobody to tell.
pub(crate) fn say(line: std::fmt::Arguments<'_>) {
    drop(writeln!(anstream::stderr(), "{line}"));
}

pub(crate) fn error(text: &str) {
    say(format_args!("{BAD}error{BAD:#}: {text}"));
}

pub(crate) fn warning(text: &str) {
    say(format_args!("{WARN}warning{WARN:#}: {text}"));
}

/// A duration at a glance: `0.34s`, `12.3s`, `2m 05s`, `1h 02m`.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.2}s", duration.as_secs_f64()),
        10..60 => format!("{:.1}s", duration.as_secs_f64()),
        60..3600 => format!("{}m {:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h {:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A command as one could type it, in one line, without anything that could steer a terminal.
pub(crate) fn command(command: &[OsText]) -> String {
    let words: Vec<String> = command.iter().map(word).collect();
    words.join(" ")
}

fn word(word: &OsText) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "_-./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    if text.chars().any(hides) || text.contains(char::REPLACEMENT_CHARACTER) {
        return format!("$'{}'", word.as_bytes().escape_ascii());
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a character steers a terminal, cannot be seen, or makes others look different from what they are: controls,
/// spaces that are none, and characters that join, hide or turn around their neighbours.
fn hides(c: char) -> bool {
    let formats = matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}');
    c.is_control() || formats || c.is_whitespace() && c != ' '
}

/// `1 file`, `2 files`.
pub(crate) fn plural(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Text of others, without anything that could steer a terminal.
pub(crate) fn harmless(text: &str) -> String {
    let escape = |c: char| match hides(c) {
        true => c.escape_default().to_string(),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// The same, line by line.
pub(crate) fn harmless_lines(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(harmless).collect();
    lines.join("\n")
}

/// At most `width` characters, with an ellipsis where something was left out.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(width.saturating_sub(1)).collect();
    short.push('…');
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_at_a_glance() {
        let shown = |millis| duration(Duration::from_millis(millis));
        assert_eq!(shown(0), "0.00s");
        assert_eq!(shown(340), "0.34s");
        assert_eq!(shown(12_340), "12.3s");
        assert_eq!(shown(125_000), "2m 05s");
        assert_eq!(shown(3_725_000), "1h 02m");
    }

    #[test]
    fn commands_can_be_typed_and_steer_nothing() {
        let shown = |words: &[&str]| {
            let words: Vec<OsText> = words.iter().map(|word| OsText::from(*word)).collect();
            command(&words)
        };
        assert_eq!(shown(&["sh", "-c", "exit 3"]), "sh -c 'exit 3'");
        assert_eq!(shown(&["echo", "it's", ""]), r"echo 'it'\''s' ''");
        assert_eq!(shown(&["echo", "\x1b[2J"]), r"echo $'\x1b[2J'");
        assert_eq!(shown(&["a\u{202e}b"]), r"$'a\xe2\x80\xaeb'");
        assert_eq!(harmless("a\u{200b}b\u{a0}c"), r"a\u{200b}b\u{a0}c");
        assert_eq!(word(&OsText::from(vec![b'a', 0xff])), r"$'a\xff'");
    }
}
