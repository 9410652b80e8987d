//! What a confined run may reach at most. The kernel holds this bound; whoever makes it decides where it lies.

use std::path::PathBuf;

/// The outer bound of a run: nothing beyond it happens, whatever the gate says. It is coarse: trees of files, ports,
/// on or off. What is exact is the gate's.
///
/// `None` leaves a kind of access without a bound. A path that does not exist allows nothing and is reported. What
/// every program needs (`/dev/null`, `/dev/tty`, `/proc`, shared libraries, the dynamic loader among the programs) has
/// to be among the roots.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Files and trees that may be read. Loading a program reads it too.
    pub read: Option<Vec<PathBuf>>,
    /// Files and trees that may be changed, and in which files may be made, renamed and removed.
    pub write: Option<Vec<PathBuf>>,
    /// Files and trees from which programs may be loaded: commands, interpreters, the dynamic loader.
    pub execute: Option<Vec<PathBuf>>,
    /// TCP ports that may be connected to.
    pub connect: Option<Vec<u16>>,
    /// TCP ports that may be listened on; 0 stands for any port that the kernel chooses.
    pub bind: Option<Vec<u16>>,
    /// Whether there is a network at all.
    pub network: Network,
    /// Whether abstract Unix sockets of processes outside may be connected to.
    pub abstract_sockets: bool,
    /// Whether the kernel writes what it refuses to the machine's audit log, where it has one (Landlock 7).
    pub audit: bool,
}

/// Whether there is a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Network {
    /// The ports decide.
    #[default]
    Unrestricted,
    /// There is none but Unix sockets: nothing can be connected to, listened on or sent to.
    None,
}
