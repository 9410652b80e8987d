//! The page: tables that read as well on a terminal.

use std::fmt;

use super::rounds::number;

/// What a number should be.
#[derive(Debug, Clone, Copy)]
pub(super) enum Goal {
    AtLeast(f64),
    Above(f64),
}

impl Goal {
    pub(super) fn verdict(self, reached: f64) -> String {
        let (sign, goal, met) = match self {
            Goal::AtLeast(goal) => ('≥', goal, reached >= goal),
            Goal::Above(goal) => ('>', goal, reached > goal),
        };
        let verdict = if met { "met" } else { "**missed**" };
        format!("{sign} {}: {verdict}", number(goal))
    }
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
        writeln!(f, "## {}\n\n{}\n", self.title, self.note)?;
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

/// Everything that was measured in one run.
pub(super) struct Page {
    machine: String,
    tables: Vec<Table>,
}

impl Page {
    pub(super) fn new(machine: String) -> Page {
        Page {
            machine,
            tables: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, table: Table) {
        println!("\n{table}");
        self.tables.push(table);
    }
}

impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(concat!(
            "# Benchmarks\n\n",
            "Written by `cargo xtask bench`; do not edit. All contestants take turns within each round, in changing order. ",
            "A number is the median over the rounds, with the quartiles in brackets; a ratio is the median of the ratios ",
            "within each round.\n\n",
        ))?;
        writeln!(f, "{}", self.machine)?;
        for table in &self.tables {
            writeln!(f, "{table}")?;
        }
        Ok(())
    }
}
