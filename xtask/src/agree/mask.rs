//! Names with a random or a timely part, which are another in each run.

/// A pattern, and why it is needed. `?` is a letter, a digit, `_` or `-`; `%` is a digit; `+` is one or more of what `?`
/// is; `%+` is one or more digits.
pub(super) type Mask = (&'static str, &'static str);

/// What holds everywhere.
const EVERYWHERE: &[Mask] = &[("/proc/%+", "a process, by its pid")];

/// Patterns of one scenario.
#[derive(Debug)]
pub(super) struct Masks(Vec<Vec<char>>);

impl Masks {
    pub(super) fn new(masks: &[Mask]) -> Masks {
        let all = EVERYWHERE.iter().chain(masks);
        Masks(all.map(|(pattern, _)| pattern.chars().collect()).collect())
    }

    /// Puts the pattern in the place of whatever matches it, as a whole word.
    pub(super) fn apply(&self, text: &str) -> String {
        let chars: Vec<char> = text.chars().collect();
        let mut masked = String::with_capacity(text.len());
        let mut at = 0;
        while at < chars.len() {
            let begins = at == 0 || !joins(chars[at - 1]) || !joins(chars[at]);
            let found = self.0.iter().filter(|_| begins).find_map(|pattern| {
                let end = matched(pattern, &chars[at..])? + at;
                let ends = chars.get(end).is_none_or(|next| !joins(*next));
                ends.then_some((pattern, end))
            });
            match found {
                Some((pattern, end)) => {
                    masked.extend(pattern);
                    at = end;
                }
                None => {
                    masked.push(chars[at]);
                    at += 1;
                }
            }
        }
        masked
    }
}

/// What makes two words one.
fn joins(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_word(c: char) -> bool {
    joins(c) || c == '-'
}

/// How much of the beginning of `text` a pattern matches.
fn matched(pattern: &[char], text: &[char]) -> Option<usize> {
    let Some((&first, rest)) = pattern.split_first() else {
        return Some(0);
    };
    let fits = |c: char| match first {
        '?' | '+' => is_word(c),
        '%' => c.is_ascii_digit(),
        exactly => c == exactly,
    };
    let (&c, behind) = text.split_first()?;
    if !fits(c) {
        return None;
    }
    if first == '%' && rest.first() == Some(&'+') {
        let digits = text.iter().take_while(|c| c.is_ascii_digit()).count();
        return matched(&rest[1..], &text[digits..]).map(|more| more + digits);
    }
    if first == '+' {
        let most = text.iter().take_while(|c| is_word(**c)).count();
        let fitting = (1..=most).rev();
        return fitting
            .into_iter()
            .find_map(|len| matched(rest, &text[len..]).map(|more| more + len));
    }
    matched(rest, behind).map(|more| more + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_words_that_fit_are_masked() {
        let masks = Masks::new(&[("cc??????.o", "gcc"), ("tmp-+.x", "a name")]);
        for (text, masked) in [
            ("/tmp/ccAb12_3.o [write]", "/tmp/cc??????.o [write]"),
            ("/tmp/ccAb12_34.o", "/tmp/ccAb12_34.o"),
            ("accAb12_3.o", "accAb12_3.o"),
            ("tmp-abc.x tmp-.x", "tmp-+.x tmp-.x"),
            ("/proc/123/fd /proc/12a", "/proc/%+/fd /proc/12a"),
        ] {
            assert_eq!(masks.apply(text), masked);
        }
    }
}
