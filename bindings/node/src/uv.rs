//! libuv's loop, in which Node.js runs JavaScript: calls a function when a descriptor is readable, or after a time.
//!
//! Node-API has no descriptors, and a thread in between would cost each burst two switches. libuv's functions are a
//! stable part of Node.js. Bun has no `uv_poll_init`: see [`ThreadWatcher`](crate::thread::ThreadWatcher).
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::rc::Rc;
use std::time::Duration;

use napi::bindgen_prelude::{Function, JsValue as _, ToNapiValue as _};
use napi::{Env, Error, Result, Status, sys};

/// libuv's numbers of its handles (`uv_handle_type`).
const UV_POLL: c_int = 8;
const UV_TIMER: c_int = 13;
const UV_READABLE: c_int = 1;

unsafe extern "C" {
    fn uv_handle_size(kind: c_int) -> usize;
    fn uv_handle_set_data(handle: *mut c_void, data: *mut c_void);
    fn uv_handle_get_data(handle: *mut c_void) -> *mut c_void;
    fn uv_poll_init(uv: *mut c_void, handle: *mut c_void, fd: c_int) -> c_int;
    fn uv_poll_start(handle: *mut c_void, events: c_int, call: PollCall) -> c_int;
    fn uv_timer_init(uv: *mut c_void, handle: *mut c_void) -> c_int;
    fn uv_timer_start(handle: *mut c_void, call: HandleCall, timeout: u64, repeat: u64) -> c_int;
    fn uv_timer_stop(handle: *mut c_void) -> c_int;
    fn uv_ref(handle: *mut c_void);
    fn uv_unref(handle: *mut c_void);
    fn uv_close(handle: *mut c_void, call: HandleCall);
}

type PollCall = unsafe extern "C" fn(*mut c_void, c_int, c_int);
type HandleCall = unsafe extern "C" fn(*mut c_void);

/// A descriptor and a timer of the loop. Both call one function.
#[derive(Debug)]
pub(crate) struct LoopWatcher(Rc<State>);

/// What the watcher and libuv's handles share. The handles have one reference, until both have ended.
#[derive(Debug)]
struct State {
    env: sys::napi_env,
    function: sys::napi_ref,
    /// For promises and `process.nextTick`, which run after the call.
    context: sys::napi_async_context,
    poll: *mut c_void,
    timer: *mut c_void,
    /// Handles without a reported end.
    handles: Cell<u8>,
    is_closing: Cell<bool>,
    /// The environment waits for the handles' end, if it ends before the watcher.
    cleanup: Cell<sys::napi_async_cleanup_hook_handle>,
}

/// Memory of a handle. libuv asks for a size at run time.
fn allocate(kind: c_int) -> *mut c_void {
    // SAFETY: a function without arguments that matter.
    let size = unsafe { uv_handle_size(kind) };
    let memory = vec![0_u64; size.div_ceil(8)].into_boxed_slice();
    Box::into_raw(memory).cast()
}

/// Frees a handle from [`allocate`].
unsafe fn free(handle: *mut c_void, kind: c_int) {
    // SAFETY: the same size as at the allocation, which is from a boxed slice of words.
    unsafe {
        let words = uv_handle_size(kind).div_ceil(8);
        drop(Box::from_raw(ptr::slice_from_raw_parts_mut(handle.cast::<u64>(), words)));
    }
}

fn check(status: c_int, what: &str) -> Result<()> {
    match status {
        0 => Ok(()),
        _ => Err(Error::new(Status::GenericFailure, format!("{what} fails with {status}"))),
    }
}

impl LoopWatcher {
    /// Watches a descriptor, which must stay open until [`close`](Self::close).
    ///
    /// # Errors
    /// libuv cannot watch it.
    pub(crate) fn new(env: &Env, fd: RawFd, function: &Function<'_, (), ()>) -> Result<Self> {
        let mut uv = ptr::null_mut();
        let (mut reference, mut context, mut cleanup) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let raw = env.raw();
        // SAFETY: the environment and the function are valid during this call; the results are checked.
        unsafe {
            napi::check_status!(sys::napi_get_uv_event_loop(raw, &raw mut uv), "no loop of libuv")?;
            napi::check_status!(sys::napi_create_reference(raw, function.raw(), 1, &raw mut reference))?;
            let name = <&str>::to_napi_value(raw, "sinews")?;
            napi::check_status!(sys::napi_async_init(raw, ptr::null_mut(), name, &raw mut context))?;
        }
        let uv = uv.cast();
        let (poll, timer) = (allocate(UV_POLL), allocate(UV_TIMER));
        // SAFETY: both handles have the size that libuv asked for. Those that were not initialized are freed, as are
        // the reference and the context, which are valid and used by nothing else.
        unsafe {
            if let Err(error) = check(uv_poll_init(uv, poll, fd), "uv_poll_init") {
                free(poll, UV_POLL);
                free(timer, UV_TIMER);
                sys::napi_async_destroy(raw, context);
                sys::napi_delete_reference(raw, reference);
                return Err(error);
            }
            // libuv documents no failure.
            uv_timer_init(uv, timer);
        }
        let state = Rc::new(State {
            env: raw,
            function: reference,
            context,
            poll,
            timer,
            handles: Cell::new(2),
            is_closing: Cell::new(false),
            cleanup: Cell::new(ptr::null_mut()),
        });
        // SAFETY: the handles are initialized; their reference to the state is released when both have ended.
        unsafe {
            let shared = Rc::into_raw(Rc::clone(&state)).cast_mut().cast::<c_void>();
            uv_handle_set_data(poll, shared);
            uv_handle_set_data(timer, shared);
            // The descriptor alone keeps the process alive.
            uv_unref(timer);
            sys::napi_add_async_cleanup_hook(raw, Some(on_environment_end), shared, &raw mut cleanup);
            state.cleanup.set(cleanup);
            let watcher = Self(state);
            match check(uv_poll_start(poll, UV_READABLE, on_readable), "uv_poll_start") {
                Ok(()) => Ok(watcher),
                Err(error) => {
                    watcher.close();
                    Err(error)
                }
            }
        }
    }

    /// Calls the function after this time; `None`: only when the descriptor is readable.
    pub(crate) fn set_timer(&self, after: Option<Duration>) {
        if self.0.is_closing.get() {
            return;
        }
        // SAFETY: the timer is initialized and not closed.
        unsafe {
            match after {
                // Not before the time: a millisecond is the clock's step.
                Some(after) => {
                    let milliseconds = u64::try_from(after.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
                    uv_timer_start(self.0.timer, on_timer, milliseconds, 0);
                }
                None => {
                    uv_timer_stop(self.0.timer);
                }
            }
        }
    }

    /// Whether the descriptor keeps the process alive.
    pub(crate) fn set_ref(&self, is_ref: bool) {
        if !self.0.is_closing.get() {
            // SAFETY: the handle is initialized and not closed.
            unsafe { if is_ref { uv_ref(self.0.poll) } else { uv_unref(self.0.poll) } }
        }
    }

    /// Ends both handles. The descriptor may be closed from then on.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

impl Drop for LoopWatcher {
    fn drop(&mut self) {
        self.close();
    }
}

impl State {
    fn close(&self) {
        if !self.is_closing.replace(true) {
            // SAFETY: the handles are initialized, and closed once.
            unsafe {
                uv_close(self.poll, on_poll_closed);
                uv_close(self.timer, on_timer_closed);
            }
        }
    }
}

/// The environment ends, for example with its thread, and waits until the hook is removed.
unsafe extern "C" fn on_environment_end(_: sys::napi_async_cleanup_hook_handle, state: *mut c_void) {
    // SAFETY: the hook is removed before the state is freed.
    unsafe { (*state.cast::<State>()).close() }
}

unsafe extern "C" fn on_readable(handle: *mut c_void, _: c_int, _: c_int) {
    // SAFETY: libuv calls with an initialized handle, on JavaScript's thread.
    unsafe { call(handle) }
}

unsafe extern "C" fn on_timer(handle: *mut c_void) {
    // SAFETY: as above.
    unsafe { call(handle) }
}

/// Calls the function, outside of any other JavaScript.
unsafe fn call(handle: *mut c_void) {
    // SAFETY: the state outlives both handles, which are closed before the environment ends. The scope is closed before
    // the return.
    unsafe {
        let State { env, function, context, .. } = *uv_handle_get_data(handle).cast::<State>();
        let mut scope = ptr::null_mut();
        if sys::napi_open_handle_scope(env, &raw mut scope) != sys::Status::napi_ok {
            return;
        }
        let (mut callee, mut global, mut result) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        sys::napi_get_reference_value(env, function, &raw mut callee);
        sys::napi_get_global(env, &raw mut global);
        let status = sys::napi_make_callback(env, context, global, callee, 0, ptr::null(), &raw mut result);
        if status == sys::Status::napi_pending_exception {
            let mut exception = ptr::null_mut();
            sys::napi_get_and_clear_last_exception(env, &raw mut exception);
            // `uncaughtException`, as for each callback of Node.js.
            sys::napi_fatal_exception(env, exception);
        }
        sys::napi_close_handle_scope(env, scope);
    }
}

unsafe extern "C" fn on_poll_closed(handle: *mut c_void) {
    // SAFETY: the handle has ended; nothing uses it any more.
    unsafe {
        release(handle);
        free(handle, UV_POLL);
    }
}

unsafe extern "C" fn on_timer_closed(handle: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        release(handle);
        free(handle, UV_TIMER);
    }
}

/// Releases the handles' reference to the state with the last handle.
unsafe fn release(handle: *mut c_void) {
    // SAFETY: both handles share the reference, which is released once. The environment has not ended: it waits for the
    // hook.
    unsafe {
        let state = uv_handle_get_data(handle).cast::<State>().cast_const();
        (*state).handles.set((*state).handles.get() - 1);
        if (*state).handles.get() == 0 {
            let state = Rc::from_raw(state);
            let mut scope = ptr::null_mut();
            sys::napi_open_handle_scope(state.env, &raw mut scope);
            sys::napi_async_destroy(state.env, state.context);
            sys::napi_delete_reference(state.env, state.function);
            sys::napi_close_handle_scope(state.env, scope);
            sys::napi_remove_async_cleanup_hook(state.cleanup.get());
        }
    }
}
