//! Sets the linker's options for an addon.

fn main() {
    napi_build::setup();
}
