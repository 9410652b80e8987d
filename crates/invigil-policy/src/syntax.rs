//! TOML with places: tables whose keys are all known, and values whose types are what was expected.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::Flaw;

type Span = Range<usize>;

/// A table of the file.
#[derive(Clone, Copy)]
pub(crate) struct Table<'t> {
    /// As it stands in the file: `[files.read]`. Empty for the file itself.
    name: &'t str,
    entries: &'t DeTable<'t>,
}

/// A value, and the key it stands behind.
#[derive(Clone, Copy)]
pub(crate) struct Value<'t> {
    key: &'t str,
    value: &'t Spanned<DeValue<'t>>,
}

/// A text of the file.
#[derive(Debug, Clone)]
pub(crate) struct Text<'t> {
    pub(crate) text: &'t str,
    pub(crate) span: Span,
}

/// Reads a file as far as TOML goes.
pub(crate) fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Flaw> {
    DeTable::parse(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let duplicate = error.message().contains("duplicate key");
        let help = match duplicate {
            true => "write each key and each table once, and put all rules of a kind into one list",
            false => "a policy file is TOML: `key = \"text\"`, `key = [\"a\", \"b\"]`, `[table]`",
        };
        let message = error.message().trim().replace('\n', "; ");
        let message = format!("this is not TOML: {message}");
        Flaw::new(span, message, "here", help)
    })
}

impl<'t> Table<'t> {
    pub(crate) fn new(name: &'t str, entries: &'t DeTable<'t>) -> Self {
        Table { name, entries }
    }

    /// Refuses every key that is not one of these.
    pub(crate) fn only(self, keys: &[&str]) -> Result<Self, Flaw> {
        let unknown = |key: &&Spanned<_>| {
            !keys.contains(&&**AsRef::<std::borrow::Cow<'_, str>>::as_ref(*key))
        };
        let Some(key) = self
            .entries
            .keys()
            .filter(unknown)
            .min_by_key(|key| key.span().start)
        else {
            return Ok(self);
        };
        let name: &str = key.get_ref();
        let place = match self.name {
            "" => "a policy file".to_owned(),
            name => name.to_owned(),
        };
        let guess =
            nearest(name, keys).map_or(String::new(), |near| format!("did you mean `{near}`? "));
        let help = format!("{guess}{place} may have: {}", keys.join(", "));
        Err(Flaw::new(
            key.span(),
            format!("unknown key `{name}`"),
            "nothing reads this",
            help,
        ))
    }

    pub(crate) fn get(self, key: &'t str) -> Option<Value<'t>> {
        let value = self.entries.get(key)?;
        Some(Value { key, value })
    }

    /// All entries, in the order of the file.
    pub(crate) fn entries(self) -> Vec<(Text<'t>, Value<'t>)> {
        let mut entries: Vec<_> = self
            .entries
            .iter()
            .map(|(key, value)| {
                let text: &'t str = key.get_ref();
                let span = key.span();
                (Text { text, span }, Value { key: text, value })
            })
            .collect();
        entries.sort_by_key(|(key, _)| key.span.start);
        entries
    }
}

impl<'t> Value<'t> {
    pub(crate) fn span(self) -> Span {
        self.value.span()
    }

    pub(crate) fn get(self) -> &'t DeValue<'t> {
        self.value.get_ref()
    }

    pub(crate) fn table(self, name: &'t str) -> Result<Table<'t>, Flaw> {
        match self.get().as_table() {
            Some(entries) => Ok(Table { name, entries }),
            None => Err(self.unlike(
                "a table",
                &format!("write {name} on a line of its own, and its keys below"),
            )),
        }
    }

    pub(crate) fn text(self, example: &str) -> Result<Text<'t>, Flaw> {
        let span = self.span();
        match self.get().as_str() {
            Some(text) => Ok(Text { text, span }),
            None => Err(self.unlike("a text", &format!("write {example}"))),
        }
    }

    pub(crate) fn list(self, example: &str) -> Result<Vec<Value<'t>>, Flaw> {
        let key = self.key;
        match self.get().as_array() {
            Some(values) => Ok(values.iter().map(|value| Value { key, value }).collect()),
            None => Err(self.unlike("a list", &format!("write {example}"))),
        }
    }

    /// A list of texts.
    pub(crate) fn texts(self, example: &str) -> Result<Vec<Text<'t>>, Flaw> {
        self.list(example)?
            .into_iter()
            .map(|value| value.text(example))
            .collect()
    }

    /// A whole number of at least 1.
    pub(crate) fn count(self) -> Result<u64, Flaw> {
        let help = format!("write a whole number of at least 1: {} = 100", self.key);
        let Some(integer) = self.get().as_integer() else {
            return Err(self.unlike("a number", &help));
        };
        let digits = integer.as_str().replace('_', "");
        match u64::from_str_radix(&digits, integer.radix()) {
            Ok(0) | Err(_) => Err(Flaw::new(
                self.span(),
                format!("`{}` cannot be {}", self.key, integer.as_str()),
                "not a useful limit",
                help,
            )),
            Ok(count) => Ok(count),
        }
    }

    pub(crate) fn unlike(self, wanted: &str, help: &str) -> Flaw {
        let found = self.get().type_str();
        let message = format!(
            "`{}` must be {wanted}, and this is of type {found}",
            self.key
        );
        Flaw::new(self.span(), message, format!("not {wanted}"), help)
    }
}

/// The word that was probably meant.
pub(crate) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let lower = word.to_lowercase();
    let distances = known.iter().map(|known| (distance(&lower, known), *known));
    let (distance, near) = distances.min()?;
    (distance <= 1 + near.len() / 3).then_some(near)
}

/// How many letters must be changed to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let change = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probably_meant() {
        let keys = ["allow", "ask", "deny", "default"];
        assert_eq!(nearest("alow", &keys), Some("allow"));
        assert_eq!(nearest("Deny", &keys), Some("deny"));
        assert_eq!(nearest("defualt", &keys), Some("default"));
        assert_eq!(nearest("permissions", &keys), None);
    }
}
