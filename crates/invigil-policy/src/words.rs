//! Programs that are only known by the words of a command line.

use invigil_schema::OsText;

use crate::exec::Trusted;
use crate::{Exec, Places};

/// Calls with the program that these words would load: a bare name as if it were found in `PATH`, a relative path as if
/// it were in the workspace.
pub(crate) fn line_exec<T>(
    words: &[String],
    places: &Places,
    judge: impl FnOnce(&Exec<'_>) -> T,
) -> T {
    let argv: Vec<OsText> = words
        .iter()
        .map(|word| OsText::from(word.as_str()))
        .collect();
    let name = words.first().map_or("", String::as_str);
    let program = match name {
        name if name.starts_with('/') => name.as_bytes().to_vec(),
        name if name.contains('/') => {
            let relative = name.trim_start_matches("./");
            places
                .workspace
                .join(relative)
                .as_os_str()
                .as_encoded_bytes()
                .to_vec()
        }
        name => Trusted::new(places).guess(name),
    };
    judge(&Exec {
        program: &program,
        called: &program,
        argv: &argv,
        interpreter: None,
    })
}
