//! The compiler that is a library, for builds without nvcc. cudarc's own wrapper returns PTX alone, in a version that only
//! a driver as new as the library takes; this one returns machine code.

use std::ffi::{CStr, CString};

use cudarc::nvrtc::{result, sys};

use super::ImageError;
use super::embedded::STANDARD;

/// Whether the library is there; cudarc panics where it is not.
pub(super) fn is_present() -> bool {
    // SAFETY: loads libnvrtc, as a program linked with it would; it may be loaded at any time, by any thread.
    unsafe { sys::is_culib_present() }
}

/// Machine code for `architecture`, as in `sm_90a`, with these options besides. The library must be present.
pub(super) fn compile(source: &str, architecture: &str, more: &[&str]) -> Result<Vec<u8>, ImageError> {
    let source = CString::new(source).expect("the kernels hold no zero byte");
    let program = Program::new(&source)?;
    program.compile(architecture, more)?;
    program.machine_code()
}

struct Program(sys::nvrtcProgram);

impl Program {
    /// NVRTC copies the source.
    fn new(source: &CStr) -> Result<Self, ImageError> {
        result::create_program(source, Some(c"doorbell.cu"))
            .map(Self)
            .map_err(|error| failed("creation", error))
    }

    fn compile(&self, architecture: &str, more: &[&str]) -> Result<(), ImageError> {
        // NVRTC 13.0 takes a generic lambda for the host's, else.
        let device = "--device-as-default-execution-space";
        let target = format!("--gpu-architecture={architecture}");
        let options = [&[STANDARD, "--device-int128", device, &target], more].concat();
        // SAFETY: the program exists until it is dropped.
        let compiled = unsafe { result::compile_program(self.0, &options) };
        compiled.map_err(|error| match error.0 {
            sys::nvrtcResult::NVRTC_ERROR_COMPILATION | sys::nvrtcResult::NVRTC_ERROR_INVALID_OPTION => {
                ImageError::Compile {
                    version: version(),
                    architecture: architecture.to_owned(),
                    log: self.log(),
                }
            }
            _ => failed("compilation", error),
        })
    }

    fn log(&self) -> String {
        // SAFETY: the program exists until it is dropped.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let log = CStr::from_bytes_until_nul(bytemuck::cast_slice(&log)).unwrap_or_default();
        log.to_string_lossy().trim_end().to_owned()
    }

    /// Of a program that has been compiled.
    fn machine_code(&self) -> Result<Vec<u8>, ImageError> {
        let mut size = 0;
        // SAFETY: the program exists until it is dropped; one size is written.
        let result = unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) };
        result.result().map_err(|error| failed("asking for the size of the machine code", error))?;
        let mut code = vec![0_u8; size];
        // SAFETY: as above; `code` has the size that NVRTC asks for.
        let result = unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()) };
        result.result().map_err(|error| failed("asking for the machine code", error))?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: created in `new`, destroyed only here. That it may fail helps nobody here.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn version() -> String {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two integers.
    match unsafe { sys::nvrtcVersion(&mut major, &mut minor) } {
        sys::nvrtcResult::NVRTC_SUCCESS => format!("{major}.{minor}"),
        _ => "of unknown version".to_owned(),
    }
}

fn failed(what: &'static str, error: result::NvrtcError) -> ImageError {
    ImageError::Nvrtc { what, code: format!("{:?}", error.0) }
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;
    use crate::image::embedded::{ARCHITECTURES, SOURCE};

    /// Whether to go on: NVRTC need not be here, except where `DOORBELL_NVRTC=required` says so.
    fn present() -> bool {
        let required = env::var("DOORBELL_NVRTC").is_ok_and(|value| value == "required");
        assert!(is_present() || !required, "libnvrtc is not found, and DOORBELL_NVRTC requires it");
        is_present()
    }

    #[test]
    fn nvrtc_compiles_the_kernels() {
        if !present() {
            return;
        }
        // NVRTC differs from nvcc in its front end alone, so the kernels are compiled to PTX for one architecture, and pass
        // the front end for the others. Their assembler takes more than a minute, is that of nvcc, and runs in `gpu-check`.
        // Here it runs on one small kernel.
        let first = ARCHITECTURES[0];
        let small = compile("__global__ void small(int *p) { *p = 1; }\n", &format!("sm_{first}"), &[]);
        let code = small.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(code[..4], *b"\x7FELF", "sm_{first}");
        let source = CString::new(SOURCE).expect("the kernels hold no zero byte");
        let front_end = ["--fdevice-syntax-only", "-DDOORBELL_PHASES"];
        let others = ARCHITECTURES.iter().skip(1).map(|architecture| (architecture, &front_end[..1]));
        // Those that take times, too.
        for (architecture, more) in
            others.chain([(&ARCHITECTURES[0], &[][..]), (&ARCHITECTURES[0], &front_end)])
        {
            let program = Program::new(&source).unwrap_or_else(|error| panic!("{error}"));
            let compiled = program.compile(&format!("compute_{architecture}"), more);
            compiled.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// `cargo xtask gpu-check` runs it, and so does the nightly workflow.
    #[test]
    #[ignore = "takes more than a minute"]
    fn nvrtc_makes_machine_code_of_the_kernels() {
        if !present() {
            return;
        }
        let architecture = format!("sm_{}", ARCHITECTURES[0]);
        let code = compile(SOURCE, &architecture, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(code[..4], *b"\x7FELF", "{architecture}");
    }

    #[test]
    fn nvrtc_says_where_an_error_is() {
        if !present() {
            return;
        }
        let source = "#line 7 \"kernels/broken.cuh\"\n__global__ void broken() { no_such_name(); }\n";
        let error = compile(source, "sm_80", &[]).unwrap_err();
        assert!(matches!(&error, ImageError::Compile { architecture, .. } if architecture == "sm_80"));
        let text = error.to_string();
        assert!(text.contains("kernels/broken.cuh(7)") && text.contains("no_such_name"), "{text}");
    }

    #[test]
    fn nvrtc_says_that_it_does_not_know_an_architecture() {
        if !present() {
            return;
        }
        let error = compile("", "sm_1", &[]).unwrap_err();
        assert!(matches!(error, ImageError::Compile { .. }), "{error}");
        assert!(error.to_string().contains("sm_1"), "{error}");
    }
}
