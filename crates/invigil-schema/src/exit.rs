//! The exit codes of the command line: public API, chosen not to collide with what shells and runtimes use.

/// How `invigil` ends when it is not passing on the exit status of the command it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitCode {
    /// All is well.
    Success = 0,
    /// The answer is no: a journal does not verify, a job failed.
    No = 1,
    /// The contract is not met.
    ContractNotMet = 120,
    /// Stopped by policy.
    Policy = 121,
    /// A budget was exceeded.
    Budget = 122,
    /// The time was up.
    Timeout = 124,
    /// Invigil itself failed, or was used wrongly.
    Invigil = 125,
    /// The command was found but cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

impl ExitCode {
    /// What a shell reports for a command that died of a signal.
    pub fn of_signal(signal: i32) -> u8 {
        128u8.saturating_add(signal.clamp(0, 127) as u8)
    }
}

impl From<ExitCode> for u8 {
    fn from(code: ExitCode) -> u8 {
        code as u8
    }
}
