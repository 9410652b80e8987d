//! What a gate has judged, carried out by us or not at all, where it must not be fooled (`LaunchSpec::exact`).

pub(crate) mod files;
pub(crate) mod sockets;
