//! Graphics and other processors that can be computed with, as their drivers show them.

use invigil_schema::Accelerator;

use super::tree::{Tree, value};

/// All of them, by name. A display without a driver that computes is none.
pub(super) fn find(proc: &mut Tree, sys: &mut Tree) -> Vec<Accelerator> {
    let mut found = Vec::new();
    let mut slots = Vec::new();
    for (class, prefix) in [("class/drm", "renderD"), ("class/accel", "accel")] {
        for name in sys.names(class) {
            if name.starts_with(prefix) {
                let uevent = sys.read(format!("{class}/{name}/device/uevent"));
                let (accelerator, slot) = described(name, uevent.unwrap_or_default());
                found.push(accelerator);
                slots.push(slot);
            }
        }
    }
    // The driver of NVIDIA says more, and shows its devices elsewhere than the others unless it is told to.
    for slot in proc.names("driver/nvidia/gpus") {
        let information = proc.read(format!("driver/nvidia/gpus/{slot}/information"));
        let model = value(information.unwrap_or_default(), "Model:").map(text);
        match slots.iter().position(|known| *known == slot) {
            Some(known) => found[known].model = model,
            None => found.push(Accelerator {
                name: slot,
                model,
                driver: Some("nvidia".into()),
                vendor_id: Some(0x10de),
                device_id: None,
            }),
        }
    }
    found
}

/// What the kernel says of a device, and where on the bus it is.
fn described(name: String, uevent: &[u8]) -> (Accelerator, String) {
    let ids = value(uevent, "PCI_ID=").map(text).unwrap_or_default();
    let (vendor, device) = ids.split_once(':').unwrap_or_default();
    let id = |text: &str| u32::from_str_radix(text, 16).ok();
    let accelerator = Accelerator {
        name,
        model: None,
        driver: value(uevent, "DRIVER=").map(text),
        vendor_id: id(vendor),
        device_id: id(device),
    };
    let slot = value(uevent, "PCI_SLOT_NAME=").map(text);
    (accelerator, slot.unwrap_or_default())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
