//! From the kernels to a module on a GPU: machine code of this build if the GPU and its driver take it, else PTX, else
//! what NVRTC makes of the source.

mod error;
mod nvrtc;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaContext, CudaModule, DriverError, sys};
use cudarc::nvrtc::Ptx;

use crate::info;
pub use error::ImageError;

/// What the build script made.
mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}

/// The oldest GPUs for which the kernels are written.
pub(crate) const OLDEST: (i32, i32) = (8, 0);

/// How many GPUs there are, at least one.
///
/// # Errors
/// When there is no driver, no GPU, or the driver fails.
pub(crate) fn count() -> Result<usize, ImageError> {
    // cudarc panics where the driver's library is missing.
    // SAFETY: loads libcuda, as a program linked with it would; it may be loaded at any time, by any thread.
    if !unsafe { sys::is_culib_present() } {
        return Err(ImageError::NoDriver);
    }
    let count = CudaContext::device_count().map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_NO_DEVICE => ImageError::NoGpu,
        CUresult::CUDA_ERROR_STUB_LIBRARY => ImageError::NoDriver,
        _ => ImageError::Driver { what: "initialisation", source: error },
    })?;
    match usize::try_from(count).unwrap_or_default() {
        0 => Err(ImageError::NoGpu),
        count => Ok(count),
    }
}

/// The context of GPU `ordinal`.
///
/// # Errors
/// When there is no driver, no such GPU, or the driver fails.
pub(crate) fn open(ordinal: usize) -> Result<Arc<CudaContext>, ImageError> {
    let count = count()?;
    if ordinal >= count {
        return Err(ImageError::NoSuchGpu { ordinal, count });
    }
    CudaContext::new(ordinal).map_err(|source| ImageError::Driver { what: "opening the GPU", source })
}

/// The kernels on a GPU.
#[derive(Debug)]
pub(crate) struct Kernels {
    /// The module.
    pub module: Arc<CudaModule>,
    /// Where its code is from.
    pub origin: Origin,
}

/// Where the code of a module is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// nvcc, when this program was built.
    MachineCode,
    /// nvcc, as PTX that the driver compiled.
    Ptx,
    /// NVRTC, now.
    Nvrtc,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MachineCode => "machine code",
            Self::Ptx => "PTX",
            Self::Nvrtc => "NVRTC",
        })
    }
}

/// Loads the kernels.
///
/// # Errors
/// When the GPU is too old, nothing that there is fits it and its driver, or the driver fails.
pub(crate) fn load(context: &Arc<CudaContext>) -> Result<Kernels, ImageError> {
    let failed = |source| ImageError::Driver { what: "asking for the GPU's architecture", source };
    let (major, minor) = context.compute_capability().map_err(failed)?;
    if (major, minor) < OLDEST {
        let name = context.name().map_err(failed)?;
        return Err(ImageError::OldGpu { name, major, minor });
    }

    let mut refused = vec![];
    let mut attempt = |origin, image| match context.load_module(image) {
        Ok(module) => Ok(Some(Kernels { module, origin })),
        Err(error) if another_may_do(error.0) => {
            refused.push((origin, error));
            Ok(None)
        }
        Err(source) => Err(ImageError::Driver { what: "loading the kernels", source }),
    };
    for (origin, image) in built(major, minor) {
        if let Some(kernels) = attempt(origin, image)? {
            return Ok(kernels);
        }
    }
    if nvrtc::is_present() {
        let architecture = architecture(major, minor);
        eprintln!("{}", compiles_now(&architecture));
        let image = nvrtc::compile(embedded::SOURCE, &architecture, &[])?;
        if let Some(kernels) = attempt(Origin::Nvrtc, Ptx::from_binary(image))? {
            return Ok(kernels);
        }
    }
    if refused.is_empty() {
        return Err(ImageError::NoImage);
    }
    Err(ImageError::OldDriver { driver: driver_version()?, major, minor, refused: refusals(&refused) })
}

/// What [`load_for_phases`] compiled last, and for which architecture: it takes a minute or more.
static COMPILED: Mutex<Option<(String, Vec<u8>)>> = Mutex::new(None);

/// The same kernels, compiled by NVRTC such that leaders of teams take the time of the parts of a step.
///
/// # Errors
/// As [`load`], and when NVRTC is missing.
pub(crate) fn load_for_phases(context: &Arc<CudaContext>) -> Result<Kernels, ImageError> {
    if !nvrtc::is_present() {
        return Err(ImageError::NoProfile);
    }
    let failed = |what| move |source| ImageError::Driver { what, source };
    let (major, minor) = context.compute_capability().map_err(failed("asking for the GPU's architecture"))?;
    let architecture = architecture(major, minor);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let image = match &*compiled {
        Some((known, image)) if *known == architecture => image,
        _ => {
            let image = nvrtc::compile(embedded::SOURCE, &architecture, &["-DDOORBELL_PHASES"])?;
            &compiled.insert((architecture, image)).1
        }
    };
    let module =
        context.load_module(Ptx::from_binary(image.clone())).map_err(failed("loading the kernels"))?;
    Ok(Kernels { module, origin: Origin::Nvrtc })
}

/// What is said before NVRTC compiles the kernels, as nothing else happens for a minute.
fn compiles_now(architecture: &str) -> String {
    format!(
        "note: this program has no kernels for this GPU that its driver takes, so NVRTC compiles them for {architecture} now: a minute or \
         more, at every start. `cargo xtask setup --gpu` and a new build avoid that"
    )
}

/// What nvcc made for a GPU of this compute capability, the best first.
fn built(major: i32, minor: i32) -> impl Iterator<Item = (Origin, Ptx)> {
    let its =
        embedded::MACHINE_CODE.iter().filter(move |(architecture, _)| runs_on(architecture, major, minor));
    let machine_code = its.map(|(_, image)| (Origin::MachineCode, Ptx::from_binary(inflate(image))));
    // Inflated where it is needed: it is megabytes.
    let ptx = embedded::PTX.into_iter().map(|text| (Origin::Ptx, Ptx::from_src(text_of(text))));
    machine_code.chain(ptx)
}

/// What the build has deflated.
///
/// # Panics
/// Where the build wrote something else.
fn inflate(deflated: &[u8]) -> Vec<u8> {
    miniz_oxide::inflate::decompress_to_vec_zlib(deflated).expect("the build deflated it")
}

fn text_of(deflated: &[u8]) -> String {
    String::from_utf8(inflate(deflated)).expect("PTX is text")
}

/// Whether machine code for `architecture`, as in `90a`, runs on a GPU of this compute capability: on later ones of its
/// generation too, but with a generation's own features on that alone.
fn runs_on(architecture: &str, major: i32, minor: i32) -> bool {
    let number = architecture.trim_end_matches(char::is_alphabetic);
    let plain = number == architecture;
    number
        .parse::<i32>()
        .is_ok_and(|number| number / 10 == major && (number % 10 == minor || (plain && number % 10 < minor)))
}

/// Whether the driver refused an image for what it is, so that one of another kind may do.
fn another_may_do(error: CUresult) -> bool {
    use CUresult::*;
    matches!(
        error,
        CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_INVALID_SOURCE
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUDA_ERROR_JIT_COMPILATION_DISABLED
    )
}

fn refusals(refused: &[(Origin, DriverError)]) -> String {
    let words: Vec<_> = refused.iter().map(|(origin, error)| format!("{origin}: {:?}", error.0)).collect();
    words.join(", ")
}

/// The architecture that NVRTC is to compile for: with the features of this GPU alone where nvcc uses them too.
fn architecture(major: i32, minor: i32) -> String {
    let generation = format!("{major}{minor}");
    let same = |known: &&&str| known.trim_end_matches(char::is_alphabetic) == generation;
    format!("sm_{}", embedded::ARCHITECTURES.iter().find(same).copied().unwrap_or(&generation))
}

/// The CUDA version up to which the driver knows images, as in `12.4`.
fn driver_version() -> Result<String, ImageError> {
    info::driver_version().map_err(|source| ImageError::Driver { what: "asking for its version", source })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn a_compilation_at_the_start_is_announced() {
        let text = compiles_now("sm_90a");
        assert!(
            text.contains("sm_90a") && text.contains("a minute") && text.contains("setup --gpu"),
            "{text}"
        );
    }

    /// The names of the kernels: whatever the source says.
    fn kernels() -> Vec<&'static str> {
        let name = |text: &'static str| {
            // `void`, and perhaps `__launch_bounds__(…)`, come first.
            let text = text.trim_start().strip_prefix("void")?.trim_start();
            let text = match text.strip_prefix("__launch_bounds__(") {
                Some(bounds) => bounds.split_once(')')?.1,
                None => text,
            };
            text.split_once('(').map(|(name, _)| name.trim())
        };
        embedded::SOURCE.split("__global__").skip(1).filter_map(name).collect()
    }

    #[test]
    fn without_a_driver_there_is_an_error_and_no_panic() {
        // SAFETY: as in `open`.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        assert!(matches!(open(0), Err(ImageError::NoDriver)));
    }

    #[test]
    fn the_source_needs_no_files_of_ours() {
        assert!(!embedded::SOURCE.contains("#include \""));
        assert!(embedded::SOURCE.contains("DOORBELL_CONTRACT_VERSION"));
    }

    /// The build may have been asked for some architectures alone.
    #[test]
    fn ptx_comes_with_the_machine_code_that_is_made_of_it() {
        let has = |architecture| embedded::MACHINE_CODE.iter().any(|(known, _)| *known == architecture);
        assert_eq!(has("80"), embedded::PTX.is_some());
        // An A100, an H100, and what no machine code is for.
        for (major, minor, own) in [(8, 0, has("80")), (9, 0, has("90a")), (12, 0, false)] {
            let expected = [own.then_some(Origin::MachineCode), embedded::PTX.map(|_| Origin::Ptx)];
            let built: Vec<Origin> = built(major, minor).map(|(origin, _)| origin).collect();
            assert_eq!(built, expected.into_iter().flatten().collect::<Vec<_>>(), "{major}.{minor}");
        }
    }

    #[test]
    fn machine_code_is_that_of_its_architecture() {
        for (architecture, image) in embedded::MACHINE_CODE {
            assert!(embedded::ARCHITECTURES.contains(architecture), "{architecture}");
            assert_eq!(inflate(image)[..4], *b"\x7FELF", "sm_{architecture}");
            assert!(3 * image.len() < inflate(image).len(), "sm_{architecture} is deflated");
        }
    }

    #[rstest]
    #[case("80", 8, 0, true)]
    #[case("80", 8, 9, true)]
    #[case("80", 9, 0, false)]
    #[case("89", 8, 6, false)]
    #[case("90a", 9, 0, true)]
    #[case("90a", 9, 1, false)]
    #[case("100", 10, 0, true)]
    #[case("100", 10, 3, true)]
    #[case("100", 1, 0, false)]
    #[case("100", 12, 0, false)]
    fn machine_code_runs_on_its_generation(
        #[case] architecture: &str,
        #[case] major: i32,
        #[case] minor: i32,
        #[case] expected: bool,
    ) {
        assert_eq!(runs_on(architecture, major, minor), expected);
    }

    #[test]
    fn ptx_holds_every_kernel_in_a_version_that_drivers_know() {
        let Some(ptx) = embedded::PTX.map(text_of) else { return };
        let version = ptx.lines().find_map(|line| line.strip_prefix(".version ")).unwrap();
        let (major, _) = version.trim().split_once('.').unwrap();
        assert!(kernels().len() > 1, "{:?}", kernels());
        assert!(major.parse::<u32>().unwrap() < 9, "PTX {version} needs a driver of CUDA 13");
        for kernel in kernels() {
            assert!(ptx.contains(&format!(".entry {kernel}(")), "{kernel} is missing");
        }
    }

    #[rstest]
    #[case(8, 0, "sm_80")]
    #[case(8, 9, "sm_89")]
    #[case(9, 0, "sm_90a")]
    #[case(10, 0, "sm_100")]
    #[case(12, 1, "sm_121")]
    fn the_architecture_is_that_of_the_gpu(#[case] major: i32, #[case] minor: i32, #[case] expected: &str) {
        assert_eq!(architecture(major, minor), expected);
    }

    #[rstest]
    #[case(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU, true)]
    #[case(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION, true)]
    #[case(CUresult::CUDA_ERROR_OUT_OF_MEMORY, false)]
    #[case(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, false)]
    fn only_a_refused_image_is_followed_by_another(#[case] error: CUresult, #[case] expected: bool) {
        assert_eq!(another_may_do(error), expected);
    }

    #[test]
    fn a_refusal_names_each_image() {
        let refused = [
            (Origin::MachineCode, DriverError(CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU)),
            (Origin::Ptx, DriverError(CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION)),
        ];
        assert_eq!(
            refusals(&refused),
            "machine code: CUDA_ERROR_NO_BINARY_FOR_GPU, PTX: CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
        );
    }
}
