//! Tests that printing an error with its sources names each cause once.

use std::error::Error;
use std::io;

use sinews_stream::{CreateError, OpenError, ReadError};

#[test]
fn causes_are_printed_once() {
    let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
    let errors: [Box<dyn Error>; 3] = [
        Box::new(ReadError::Io(reset())),
        Box::new(OpenError::Io("/streams".into(), reset())),
        Box::new(CreateError::Io(reset())),
    ];
    for error in errors {
        let causes = std::iter::successors(
            Some(&*error as &(dyn Error + 'static)),
            |error: &&(dyn Error + 'static)| (*error).source(),
        );
        let printed: Vec<_> = causes.map(ToString::to_string).collect();
        assert_eq!(printed.join(": ").matches("connection reset").count(), 1, "{printed:?}");
    }
}
