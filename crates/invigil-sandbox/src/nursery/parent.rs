//! The thread whose children all nurseries are, and so all their copies.
//!
//! The orphans of a run come to the main thread of this process, where those look for them who see nothing else of their run
//! (see `contract`). The children of any thread that ends come there too. So nurseries are started by a thread that is
//! neither: it starts nothing else, and never ends.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// What is to be started, and who wants it.
type Order = (Command, SyncSender<io::Result<Child>>);

/// The way to the thread, once there is one.
static PARENT: Mutex<Option<Sender<Order>>> = Mutex::new(None);

/// Starts a process on that thread.
pub(super) fn spawn(command: Command) -> io::Result<Child> {
    let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
    let (tell, told) = mpsc::sync_channel(1);
    let mut parent = PARENT.lock().unwrap_or_else(PoisonError::into_inner);
    let orders = match &mut *parent {
        Some(orders) => orders,
        none => none.insert(start()?),
    };
    orders.send((command, tell)).map_err(|_| gone())?;
    drop(parent);
    told.recv().unwrap_or_else(|_| Err(gone()))
}

fn start() -> io::Result<Sender<Order>> {
    let (orders, ordered) = mpsc::channel::<Order>();
    let body = move || {
        for (mut command, tell) in ordered {
            let started = command.spawn();
            // What was for the process alone is not kept open here.
            drop(command);
            let _ = tell.send(started);
        }
    };
    let thread = thread::Builder::new().name("invigil-parent".into());
    thread.spawn(body).map(|_| orders)
}
