//! The page: tables that read as well on a terminal.

use std::fmt;

use super::rounds::{Samples, number};

/// What a number should be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    AtLeast(f64),
    Above(f64),
    AtMost(f64),
    Below(f64),
    /// No difference that could be told from chance: the ratio's lower quartile is not above 1.
    WithinSpread,
    /// Not of this kind.
    None,
}

impl Goal {
    pub(super) fn verdict(self, reached: f64) -> String {
        let (sign, goal, met) = match self {
            Goal::AtLeast(goal) => ('≥', goal, reached >= goal),
            Goal::Above(goal) => ('>', goal, reached > goal),
            Goal::AtMost(goal) => ('≤', goal, reached <= goal),
            Goal::Below(goal) => ('<', goal, reached < goal),
            Goal::WithinSpread => ('=', 1.0, reached <= 1.0),
            Goal::None => return String::new(),
        };
        format!("{sign} {}: {}", number(goal), met_or_not(met))
    }

    /// The verdict about a median, or about the spread.
    pub(super) fn verdict_of(self, reached: &Samples) -> String {
        match self {
            Goal::WithinSpread => {
                // Two digits are shown, and two digits count.
                let met = reached.quantile(0.25) < 1.005;
                format!("1.00 within the spread: {}", met_or_not(met))
            }
            goal => goal.verdict(reached.median()),
        }
    }

    /// The same for a number that is in another column.
    pub(super) fn verdict_in(self, unit: &str, reached: &Samples) -> String {
        let verdict = self.verdict(reached.median());
        verdict.replacen(':', &format!(" {unit}:"), 1)
    }
}

fn met_or_not(met: bool) -> &'static str {
    if met { "met" } else { "**missed**" }
}

/// One comparison.
pub(super) struct Table {
    title: &'static str,
    note: String,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(super) fn new(title: &'static str, header: &[&str]) -> Table {
        let header = header.iter().map(ToString::to_string).collect();
        Table {
            title,
            note: String::new(),
            rows: vec![header],
        }
    }

    /// What was measured, and how.
    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.note = note.into();
    }

    pub(super) fn row<const N: usize>(&mut self, cells: [String; N]) {
        assert_eq!(N, self.rows[0].len(), "a cell for each column");
        self.rows.push(cells.into());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "### {}\n\n{}\n", self.title, self.note)?;
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or_default()
        };
        for (at, row) in self.rows.iter().enumerate() {
            for (column, cell) in row.iter().enumerate() {
                write!(f, "| {cell:<0$} ", width(column))?;
            }
            writeln!(f, "|")?;
            if at == 0 {
                writeln!(f, "{}|", "|---".repeat(columns))?;
            }
        }
        Ok(())
    }
}

const PREAMBLE: &str = "# Benchmarks

Written by `cargo xtask bench`; do not edit. Each part is measured by a command of its own and says when and where. All \
contestants take turns within each round, in changing order. A number is the median over the rounds, with the quartiles in \
brackets; a ratio is the median of the ratios within each round.
";

/// Everything that was measured in one run: one part of the page.
pub(super) struct Part {
    title: &'static str,
    machine: String,
    tables: Vec<Table>,
}

impl Part {
    pub(super) fn new(title: &'static str, machine: String) -> Part {
        Part {
            title,
            machine,
            tables: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, table: Table) {
        println!("\n{table}");
        self.tables.push(table);
    }

    /// The page with this part in the place of the one that had its title. The other parts stay as they are.
    pub(super) fn put_into(&self, page: &str) -> String {
        let heading = format!("## {}\n", self.title);
        let mut parts: Vec<String> = parts(page).map(str::to_owned).collect();
        match parts.iter_mut().find(|part| part.starts_with(&heading)) {
            Some(part) => *part = self.to_string(),
            None => parts.push(self.to_string()),
        }
        let parts = parts.iter().map(|part| format!("\n{}\n", part.trim()));
        PREAMBLE.to_owned() + &parts.collect::<String>()
    }
}

/// The parts of a page, each with its heading.
fn parts(page: &str) -> impl Iterator<Item = &str> {
    let begins = page.match_indices("\n## ").map(|(at, _)| at + 1);
    let mut begins: Vec<usize> = begins.collect();
    begins.push(page.len());
    let ranges: Vec<_> = begins.windows(2).map(|pair| pair[0]..pair[1]).collect();
    ranges.into_iter().map(|range| &page[range])
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## {}\n\n{}", self.title, self.machine)?;
        for table in &self.tables {
            writeln!(f, "{table}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_takes_only_its_own_place() {
        let one = Part::new("One", "- machine: a\n".into());
        let two = Part::new("Two", "- machine: b\n".into());
        let page = two.put_into(&one.put_into(""));
        assert!(page.starts_with("# Benchmarks\n\nWritten by"), "{page}");
        assert!(
            page.ends_with("\n\n## One\n\n- machine: a\n\n## Two\n\n- machine: b\n"),
            "{page}"
        );
        let again = Part::new("One", "- machine: c\n".into()).put_into(&page);
        assert_eq!(again, page.replace("machine: a", "machine: c"));
    }
}
