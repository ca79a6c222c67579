//! Verilates the device once per variant and compiles it, its clock loop and the cxx bridge.
//!
//! What Verilator makes is kept by content, in a folder that all builds of the target directory share: another profile,
//! other features or another number of workers compile only what is new to them.
//!
//! Environment: `VERILATOR` (the command, default `verilator`), `DOORBELL_RTL_WORKERS` (variants of one queue pair; by default
//! 16 workers; with the feature `variants` 1 and 4 too, and the devices of several queue pairs in `SHARED`; `1npu` has one
//! of everything),
//! `DOORBELL_SETUP_LOCK` (a file that is locked while tools are installed), `DOORBELL_RTL=off` (build no
//! device: for who only checks). `DOCS_RS`, which docs.rs sets, is as `off`: it has no Verilator.
//!
//! For `wasm32-unknown-emscripten` Verilator's tracing is left out, and with it zlib, which the FST writer needs.

#[path = "build/cache.rs"]
mod cache;
#[path = "build/inputs.rs"]
mod inputs;
#[path = "build/module.rs"]
mod module;

use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::{env, fs, thread};

use cache::{Cache, Key};

const OLDEST: (u32, u32) = (5, 6);
const SOURCES: [&str; 9] = [
    "src/axi_memory.cpp",
    "src/bridge.cpp",
    "src/contract_probe.cpp",
    "src/dma_ranges.cpp",
    "src/event_monitor.cpp",
    "src/failure.cpp",
    "src/queue_monitor.cpp",
    "src/responses.cpp",
    "src/window_watch.cpp",
];

/// A cycle of the model runs through more code than the first-level instruction cache holds: padding costs more there
/// than it gains.
const HOT_FLAGS: [&str; 3] = ["-fno-align-jumps", "-fno-align-labels", "-fno-align-loops"];

/// What makes a condition one that holds in nearly every cycle, by the end of its name: no reset, a worker's token.
const USUAL: [&str; 7] = ["rst_n", "rst_ni", "__token", "__token_take", "__fire", "__active", "__run_q"];

fn main() {
    if let Err(message) = build() {
        // Cargo shows the last lines of a failed build script: the message alone, without a backtrace.
        eprintln!("\ndoorbell-cosim: {message}\n");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=DOORBELL_RTL");
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    if env::var_os("DOCS_RS").is_some() {
        return all_is_here(&root());
    }
    match env::var("DOORBELL_RTL").unwrap_or_default().as_str() {
        "" => {}
        "off" => return Ok(()),
        other => return Err(format!("DOORBELL_RTL is {other:?}: it can be `off`, or unset")),
    }
    let root = root();
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    wait_for_setup();
    let verilator = Verilator::find()?;
    let variants = variants()?;
    let sources = rtl_sources(&root)?;

    // One process per model; the verilated sources compile together afterwards.
    let models: Vec<Model> = variants
        .iter()
        .map(|variant| Model {
            top: "rl_runtime_top",
            prefix: format!("Vtop_{}", variant.name()),
            arguments: variant.parameters(),
            sources: sources.clone(),
        })
        .chain([Model {
            top: "decode_probe",
            prefix: "Vdecode_probe".to_owned(),
            arguments: vec![],
            sources: vec![root.join("rtl/desc_pkg.sv"), manifest_dir().join("rtl/decode_probe.sv")],
        }])
        .collect();
    let generated = generate_variants(&variants, &out)?;
    compile(&verilator, &models, &generated, &root, &out)?;

    for path in sources.iter().map(PathBuf::as_path).chain([root.join("rtl").as_path()]) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rerun-if-changed={}", root.join("contract/doorbell_contract.h").display());
    for path in ["src", "rtl", "build.rs", "build"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in ["VERILATOR", "VERILATOR_ROOT", "DOORBELL_RTL_WORKERS"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    Ok(())
}

/// Tools may just be on their way: see `doorbell-setup`.
fn wait_for_setup() {
    if let Some(file) = env::var_os("DOORBELL_SETUP_LOCK").and_then(|path| fs::File::open(path).ok()) {
        // Without the lock, what is missing shows by itself.
        let _ = file.lock_shared();
    }
}

/// Whether waveforms can be recorded: not in a browser, where there are no files.
fn traces() -> bool {
    env::var("CARGO_CFG_TARGET_OS").as_deref() != Ok("emscripten")
}

fn manifest_dir() -> PathBuf {
    PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"))
}

/// What holds `rtl/` and `contract/`: the repository, or in a package, which has no repository around it, what lies in the place of the
/// links of `packaged/`.
fn root() -> PathBuf {
    let manifest = manifest_dir();
    match manifest.parent().filter(|repository| repository.join("rtl/files.f").is_file()) {
        Some(repository) => repository.to_owned(),
        None => manifest.join("packaged"),
    }
}

/// A package that lacks a source is noticed where its pages are made, without Verilator.
fn all_is_here(root: &Path) -> Result<(), String> {
    let here = ["rtl/decode_probe.sv", "rtl/watched.vlt"].into_iter().chain(SOURCES);
    let sources = rtl_sources(root)?.into_iter().chain([root.join("contract/doorbell_contract.h")]);
    match sources.chain(here.map(|file| manifest_dir().join(file))).find(|file| !file.is_file()) {
        Some(file) => Err(format!("{} is missing", file.display())),
        None => Ok(()),
    }
}

/// A device: so many of each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Variant {
    engines: u32,
    queues: u32,
    functions: u32,
    workers: u32,
}

impl Variant {
    /// Its name in files and C++.
    fn name(&self) -> String {
        let Self { engines, queues, functions, workers } = self;
        let npu = if *engines > 1 { "_npu" } else { "" };
        match (queues, functions) {
            (1, 1) => format!("w{workers}{npu}"),
            _ => format!("w{workers}_q{queues}_f{functions}{npu}"),
        }
    }

    fn parameters(&self) -> Vec<String> {
        // Two gangs have room for a step of every worker; one worker needs one of everything.
        let (gangs, contexts) = if self.workers == 1 { (1, 1) } else { (2, self.workers.div_ceil(2).max(4)) };
        [
            ("Workers", self.workers),
            ("Queues", self.queues),
            ("Functions", self.functions),
            ("Engines", self.engines),
            ("Gangs", gangs),
            ("Contexts", contexts),
        ]
        .map(|(name, value)| format!("-G{name}={value}"))
        .to_vec()
    }
}

/// The devices of several queue pairs, and those with a language model's engine.
const SHARED: [Variant; 3] = [
    Variant { engines: 1, queues: 4, functions: 4, workers: 4 },
    Variant { engines: 1, queues: 16, functions: 4, workers: 16 },
    Variant { engines: 2, queues: 2, functions: 2, workers: 8 },
];

fn variants() -> Result<Vec<Variant>, String> {
    // The largest stands in for all smaller ones, by the register WORKERS.
    let default = if env::var_os("CARGO_FEATURE_VARIANTS").is_some() { "1,4,16" } else { "16" };
    let list = env::var("DOORBELL_RTL_WORKERS").unwrap_or_else(|_| default.to_owned());
    let one = |text: &str| {
        let (number, engines) = text.strip_suffix("npu").map_or((text, 1), |number| (number, 2));
        let workers = number.parse().ok().filter(|workers| (1..=16).contains(workers))?;
        let many = if engines > 1 && workers > 1 { 2 } else { 1 };
        Some(Variant { engines, queues: many, functions: many, workers })
    };
    let mut variants = list
        .split(',')
        .map(|text| one(text.trim()))
        .collect::<Option<Vec<Variant>>>()
        .ok_or_else(|| {
            format!(
                "DOORBELL_RTL_WORKERS is {list:?}: it lists numbers of workers from 1 to 16, with `npu` behind one \
                 that is to have a language model's engine, as in 1,4,16,4npu"
            )
        })?;
    if env::var_os("CARGO_FEATURE_VARIANTS").is_some() && env::var_os("DOORBELL_RTL_WORKERS").is_none() {
        variants.extend(SHARED);
    }
    variants.sort_unstable();
    variants.dedup();
    Ok(variants)
}

fn rtl_sources(root: &Path) -> Result<Vec<PathBuf>, String> {
    let list = root.join("rtl/files.f");
    let text =
        fs::read_to_string(&list).map_err(|error| format!("cannot read {}: {error}", list.display()))?;
    Ok(text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .map(|line| root.join(line))
        .collect())
}

/// One top level to be verilated.
struct Model {
    top: &'static str,
    prefix: String,
    arguments: Vec<String>,
    sources: Vec<PathBuf>,
}

struct Verilator {
    command: Vec<String>,
    include: PathBuf,
}

impl Verilator {
    fn find() -> Result<Self, String> {
        let command = env::var("VERILATOR").unwrap_or_else(|_| "verilator".to_owned());
        // A path may have blanks.
        let command: Vec<String> = if Path::new(&command).is_file() {
            vec![command]
        } else {
            command.split_whitespace().map(str::to_owned).collect()
        };
        let name = command.first().ok_or("VERILATOR is empty: unset it, or give the command")?;
        let output = Command::new(name).args(&command[1..]).args(["--getenv", "VERILATOR_ROOT"]).output();
        let output = output.map_err(|error| {
            format!(
                "Verilator is needed to build the RTL device, but {name:?} cannot be run ({error}).\n\
                 Run `cargo xtask setup` to install it, or set VERILATOR to the command."
            )
        })?;
        let include = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()).join("include");
        // Some packages print an empty version line; the header is always right.
        let header = include.join("verilated_config.h");
        let text = fs::read_to_string(&header).map_err(|error| {
            format!("{name:?} is no working Verilator: cannot read {}: {error}", header.display())
        })?;
        let version = text
            .lines()
            .filter_map(|line| line.strip_prefix("#define VERILATOR_VERSION ")?.split('"').nth(1))
            .find_map(version_of)
            .or_else(|| text.split("VERILATOR_PRODUCT").nth(1)?.split_whitespace().find_map(version_of));
        match version {
            Some(version) if version < OLDEST => Err(format!(
                "Verilator {}.{:03} is too old: {}.{:03} or later is needed. Run `cargo xtask setup`.",
                version.0, version.1, OLDEST.0, OLDEST.1
            )),
            _ => Ok(Self { command, include }),
        }
    }

    /// Verilates into `directory`, which is empty.
    fn run(&self, model: &Model, directory: &Path) -> Result<(), String> {
        let output = self
            .command(model)
            .arg("--Mdir")
            .arg(directory)
            .output()
            .map_err(|error| format!("cannot run {:?}: {error}", self.command[0]))?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{} does not verilate:\n{}", model.top, String::from_utf8_lossy(&output.stderr)))
    }

    fn command(&self, model: &Model) -> Command {
        let mut command = Command::new(&self.command[0]);
        command
            .args(&self.command[1..])
            // Warnings fail `cargo xtask lint`, not the build of somebody whose Verilator or path has more to warn about.
            .args(["--cc", "--assert", "-O3", "-Wno-fatal", "-Wno-lint", "-Wno-style"])
            // It takes common parts out of expressions that are looked at seldom, and computes them in every cycle.
            .arg("-fno-dfg")
            // It takes a process apart, and what stood behind one test stands behind many.
            .arg("-fno-split")
            .args(["--x-assign", "unique", "--x-initial", "unique", "--timescale-override", "1ns/1ns"])
            .args(["--top-module", model.top, "--prefix", &model.prefix])
            .args(&model.arguments);
        if traces() {
            command.args(["--trace-fst", "--trace-structs"]);
        } else {
            command.arg(manifest_dir().join("rtl/watched.vlt"));
        }
        command.args(&model.sources);
        command
    }
}

/// `5.006` or `5.006 2023-01-22 rev …` as (5, 6).
fn version_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_whitespace().next()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The C++ that names every variant: one unit each, so that they compile side by side, and their table.
fn generate_variants(variants: &[Variant], out: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = vec![];
    let mut write = |name: String, text: String| -> Result<(), String> {
        let path = out.join(name);
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        files.push(path);
        Ok(())
    };
    for variant in variants {
        let Variant { queues, functions, workers, engines } = variant;
        let n = variant.name();
        write(
            format!("variant_{n}.cpp"),
            format!(
                "#include \"Vtop_{n}.h\"\n\
                 #include \"Vtop_{n}___024root.h\"\n\
                 #include \"model_simulator.h\"\n\
                 #ifdef DOORBELL_BARE\n\
                 #include \"bare_loop.h\"\n\
                 #define BARE_LOOP(top) , &bare_loop<top>\n\
                 #else\n\
                 #define BARE_LOOP(top)\n\
                 #endif\n\
                 namespace doorbell {{\n\
                 extern const Variant variant_{n};\n\
                 const Variant variant_{n}{{{workers}, {queues}, {functions}, {engines}, &make_model<Vtop_{n}, {queues}, {engines}> BARE_LOOP(Vtop_{n})}};\n\
                 }}\n"
            ),
        )?;
    }
    let each = |text: fn(&Variant) -> String| variants.iter().map(text).collect::<String>();
    write(
        "variants.cpp".to_owned(),
        format!(
            "#include \"simulator.h\"\n\
             namespace doorbell {{\n\
             {}\
             rust::Slice<const Variant> variants() {{\n\
             static const Variant all[]{{{}}};\n\
             return {{all, {}}};\n\
             }}\n}}\n",
            each(|variant| format!("extern const Variant variant_{};\n", variant.name())),
            each(|variant| format!("variant_{}, ", variant.name())),
            variants.len()
        ),
    )?;
    Ok(files)
}

fn compile(
    verilator: &Verilator,
    models: &[Model],
    generated: &[PathBuf],
    root: &Path,
    out: &Path,
) -> Result<(), String> {
    let source = manifest_dir().join("src");
    let configure = |build: &mut cc::Build| {
        // The simulator is the product's engine: fast whatever the cargo profile.
        build.cpp(true).std("c++20").opt_level(3).debug(false).define("NDEBUG", None);
        let traced = if traces() { "1" } else { "0" };
        for (name, value) in [
            ("VM_COVERAGE", "0"),
            ("VM_SC", "0"),
            ("VM_TRACE", traced),
            ("VM_TRACE_FST", traced),
            ("VM_TRACE_VCD", "0"),
        ] {
            build.define(name, value);
        }
        if !traces() {
            // Verilator knows no instruction to pause there.
            build.define("VL_IGNORE_UNKNOWN_ARCH", None);
        }
        build.define("VL_TIME_CONTEXT", None);
        build.flag("-include").flag(source.join("sim_hooks.h"));
        // Verilator's headers are not ours to warn about.
        build
            .flag("-isystem")
            .flag(&verilator.include)
            .flag("-isystem")
            .flag(verilator.include.join("vltstd"));
    };
    let plain = || {
        let mut build = cc::Build::new();
        configure(&mut build);
        build.warnings(false).cargo_metadata(false);
        build
    };
    // Whatever the environment says of compilers and flags is in the compiler's command line.
    let compiler = plain().try_get_compiler().map_err(|error| format!("no C++ compiler: {error}"))?;
    let version = Command::new(compiler.path()).arg("--version").output();
    let version = version.map_err(|error| format!("cannot run {}: {error}", compiler.path().display()))?;
    let tools = Key::default()
        .text(format!("{:?} {:?}", compiler.path(), compiler.args()))
        .text(String::from_utf8_lossy(&version.stdout).into_owned())
        .file(&verilator.include.join("verilated_config.h"))?
        .file(&source.join("sim_hooks.h"))?;

    let cache = Cache::of_build(out, "doorbell-rtl")?;
    let parts: Vec<Result<PathBuf, String>> = thread::scope(|scope| {
        let runtime = scope.spawn(|| {
            cache.get("runtime", &tools, |directory| {
                let mut once = plain();
                once.opt_level(1).out_dir(directory);
                let writer = traces().then_some("verilated_fst_c.cpp");
                for file in ["verilated.cpp", "verilated_threads.cpp"].into_iter().chain(writer) {
                    once.file(verilator.include.join(file));
                }
                compiled(&once)
            })
        });
        let models: Vec<_> = models
            .iter()
            .map(|model| {
                let (cache, tools, plain) = (&cache, &tools, &plain);
                scope.spawn(move || {
                    // What is done to Verilator's text below is part of what is made.
                    let mut key = tools.clone().text(format!("{:?}", verilator.command(model)));
                    for script in ["build.rs", "build/inputs.rs", "build/module.rs", "rtl/watched.vlt"] {
                        key = key.file(&manifest_dir().join(script))?;
                    }
                    for source in &model.sources {
                        key = key.file(source)?;
                    }
                    cache.get(&model.prefix, &key, |directory| {
                        verilator.run(model, directory)?;
                        compile_model(directory, &model.prefix, plain)
                    })
                })
            })
            .collect();
        models.into_iter().chain([runtime]).map(|part| part.join().expect("a part does not panic")).collect()
    });
    let parts = parts.into_iter().collect::<Result<Vec<PathBuf>, String>>()?;

    let mut bridge = cxx_build::bridge("src/bridge.rs");
    configure(&mut bridge);
    bridge.include(&source).include(root.join("contract")).include(out);
    if !traces() {
        bridge.flag("-include").flag(source.join("old_libcxx.h"));
    }
    for part in &parts {
        bridge.flag("-isystem").flag(part);
    }
    if env::var_os("CARGO_FEATURE_BARE").is_some() {
        bridge.define("DOORBELL_BARE", None);
    }
    bridge.warnings(true).extra_warnings(true).files(SOURCES).files(generated);
    for part in &parts {
        bridge.objects(files_of(part, "o")?);
    }
    bridge.compile("doorbell_rtl");
    if !traces() {
        return Ok(());
    }
    println!("cargo::rustc-link-lib=z");
    // Later Verilators no longer bring LZ4 for the FST writer along.
    if !verilator.include.join("gtkwave/lz4.c").exists() {
        println!("cargo::rustc-link-lib=lz4");
    }
    Ok(())
}

/// Compiles what Verilator wrote into `directory`.
fn compile_model(
    directory: &Path,
    prefix: &str,
    plain: &(dyn Fn() -> cc::Build + Sync),
) -> Result<(), String> {
    // What runs in every cycle, what runs for waveforms, and what runs once: large, and slow to optimise.
    let (mut hot, mut wave) = (plain(), plain());
    hot.opt_level(3).include(directory).out_dir(directory);
    HOT_FLAGS.iter().for_each(|flag| _ = hot.flag_if_supported(flag));
    wave.opt_level(1).include(directory).out_dir(directory);
    let (mut once, mut cycle) = (String::new(), vec![]);
    for file in files_of(directory, "cpp")? {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match () {
            () if name.contains("__Trace__") && !name.ends_with("__Slow.cpp") => _ = wave.file(file),
            () if name.contains("___024root__DepSet") && !name.ends_with("__Slow.cpp") => cycle.push(file),
            // The way from `eval` to what runs in every cycle.
            () if name == format!("{prefix}.cpp") => _ = hot.file(file),
            // All as one unit: the headers take longer than the rest of each.
            () => once += &format!("#include \"{name}\"\n"),
        }
    }
    tune(&cycle, directory, prefix)?;
    hot.files(cycle);
    let path = directory.join("once.cc");
    fs::write(&path, once).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    let mut slow = plain();
    slow.opt_level(0).include(directory).out_dir(directory).file(path);
    [hot, wave, slow].iter().try_for_each(compiled)
}

/// Makes a cycle of the model in `files` cheaper. Where a Verilator writes other text than this expects, the program is the
/// same, only slower.
fn tune(files: &[PathBuf], directory: &Path, prefix: &str) -> Result<(), String> {
    let failed = |file: &Path, error| format!("cannot tune {}: {error}", file.display());
    let read = |file: &Path| fs::read_to_string(file).map_err(|error| failed(file, error));
    let write = |file: &Path, text| fs::write(file, text).map_err(|error| failed(file, error));
    let mut texts = files.iter().map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
    let top = directory.join(format!("{prefix}.cpp"));
    let squeezed: Vec<String> = texts.iter().map(|text| text.split_whitespace().collect()).collect();
    let clocks = clocks(&squeezed);
    let evaluation = clocks.as_ref().and_then(|clocks| {
        texts.iter().enumerate().find_map(|(at, text)| Some((at, shorten_evaluation(text, prefix, clocks)?)))
    });
    let step = shorten_step(&read(&top)?, prefix);
    let mut is_known = false;
    if let (Some((at, text)), Some(step)) = (evaluation, step) {
        texts[at] = text;
        write(&top, step)?;
        inputs::leave_to_inputs(&mut texts);
        is_known = true;
    } else if squeezed.iter().any(|text| text.contains(EDGE)) {
        println!(
            "cargo::warning={prefix}: this Verilator writes an evaluation that cosim/build.rs does not know, so the simulation takes \
             about a half longer"
        );
    }
    for text in &mut texts {
        *text = sign_bytes(&mark_seldom(&leave_unset(text)));
    }
    // There is no tracing where the program is a module of WebAssembly.
    if is_known && !traces() {
        match module::place(&mut texts, &read(&top)?, prefix) {
            Some(text) => write(&top, text)?,
            None => println!(
                "cargo::warning={prefix}: this Verilator writes a model that cosim/build.rs cannot place, so the simulation takes about a fifth longer"
            ),
        }
        for text in &mut texts {
            *text = module::fail_elsewhere(text);
        }
    }
    files.iter().zip(texts).try_for_each(|(file, text)| write(file, text))
}

/// Around each evaluation Verilator asks whether it is the first, and empties a queue of what its threads had to say: this model
/// has one thread, which says it at once. What is left to the inputs is worked out behind the edge as well for who records
/// waveforms, of a model that can.
fn shorten_step(text: &str, prefix: &str) -> Option<String> {
    const ACTIVITY: &str = "vlSymsp->__Vm_activity = true;\n";
    let head = format!("void {prefix}::eval_step() {{\n");
    let expected = ["vlSymsp->__Vm_didInit", "Verilated::mtaskId(0);"];
    let (before, behind) = text.split_once(&head)?;
    if !expected.iter().all(|part| behind.contains(part)) || behind.contains(ACTIVITY) != traces() {
        return None;
    }
    let root = format!("{prefix}___024root");
    let (activity, waves) = if traces() {
        let waves = format!(
            "if (VL_UNLIKELY(vlSymsp->_vm_contextp__->calcUnusedSigs())) {root}___eval_ico(&(vlSymsp->TOP));\n"
        );
        (ACTIVITY, waves)
    } else {
        ("", String::new())
    };
    Some(format!(
        "{before}void {root}___eval_ico({root}* vlSelf);\n\
         {head}\
         if (VL_LIKELY(vlSymsp->__Vm_didInit)) {{\n\
         {activity}\
         {root}___eval(&(vlSymsp->TOP));\n\
         {waves}\
         return;\n\
         }}\n\
         {behind}"
    ))
}

/// What Verilator's text, without spaces, has before the number of an edge of a clock.
const EDGE: &str = "vlSelf->__VactTriggered.at(";

/// The clocks of a model, by the numbers of their edges.
struct Clocks {
    /// `clk_i`.
    free: usize,
    /// Those that are `clk_i` behind a gate, each with what opens it.
    gated: Vec<(usize, String, String)>,
}

/// None where state follows from anything else but rising edges of `clk_i` and of clocks that are `clk_i` behind a gate. `texts` are without
/// spaces. Which number is whose depends on whether waveforms can be recorded.
fn clocks(texts: &[String]) -> Option<Clocks> {
    let edges = texts.iter().find(|text| text.contains(EDGE))?;
    let (mut free, mut gated) = (None, vec![]);
    for (number, edge) in edges.split(EDGE).skip(1).filter(|text| text.contains("U)=")).enumerate() {
        let (place, edge) = edge.split_once("U)=((IData)(vlSelf->")?;
        let (clock, rest) = edge.split_once(')')?;
        if place != number.to_string()
            || !rest.starts_with(&format!("&(~(IData)(vlSelf->__Vtrigrprev__TOP__{clock})));"))
        {
            return None;
        }
        if clock == "clk_i" {
            free = Some(number);
            continue;
        }
        let gate = format!("vlSelf->{clock}=((IData)(vlSelf->clk_i)&(IData)(vlSelf->");
        let open = texts.iter().find_map(|text| text.split_once(&gate)?.1.split_once("));"))?.0;
        gated.push((number, clock.to_owned(), open.to_owned()));
    }
    Some(Clocks { free: free?, gated })
}

/// An evaluation looks for what has changed, and looks again behind each step until nothing has. Here inputs change while
/// the clock is low, and nothing but its rising edge changes state: so with the clock low an evaluation is what follows
/// from the inputs, whether gates of clocks are open included, and at the edge it is one step of the state.
fn shorten_evaluation(text: &str, prefix: &str, Clocks { free, gated }: &Clocks) -> Option<String> {
    let root = format!("{prefix}___024root");
    let head = format!("void {root}___eval({root}* vlSelf) {{\n");
    let start = text.find(&head)? + head.len();
    let end = start + text[start..].find("\n}\n")?;
    let body = &text[start..end];
    let expected = [
        "__VpreTriggered;",
        "___eval_triggers__ico(vlSelf);",
        "___eval_ico(vlSelf);",
        "___eval_nba(vlSelf);",
    ];
    if !expected.iter().all(|part| body.contains(part)) {
        return None;
    }
    let gated: String = gated
        .iter()
        .map(|(number, clock, open)| {
            format!(
                "vlSelf->{clock} = vlSelf->{open};\n\
                 vlSelf->__VnbaTriggered.at({number}U) = vlSelf->{open};\n"
            )
        })
        .collect();
    let body = format!(
        "    if (!vlSelf->clk_i) {{\n\
         vlSelf->__Vtrigrprev__TOP__clk_i = 0U;\n\
         vlSelf->__VicoTriggered.at(0U) = 1U;\n\
         {root}___eval_ico(vlSelf);\n\
         }} else if (!vlSelf->__Vtrigrprev__TOP__clk_i) {{\n\
         vlSelf->__Vtrigrprev__TOP__clk_i = 1U;\n\
         vlSelf->__VnbaTriggered.at({free}U) = 1U;\n\
         {gated}\
         {root}___eval_nba(vlSelf);\n\
         }}"
    );
    // That step is taken at the edge alone.
    let step = |text: &str| match text.split_once(&format!("void {root}___eval_nba({root}* vlSelf) {{\n")) {
        Some((before, behind)) => {
            let (step, rest) = behind.split_at(behind.find("\n}\n").unwrap_or(0));
            let step = step.replace(&format!("vlSelf->__VnbaTriggered.at({free}U)"), "true");
            format!("{before}void {root}___eval_nba({root}* vlSelf) {{\n{step}{rest}")
        }
        None => text.to_owned(),
    };
    Some(format!("{}{body}{}", step(&text[..start]), step(&text[end..])))
}

/// What multiplies bytes extends their signs, 128 for each context in a cycle: a byte's has an instruction of its own.
fn sign_bytes(text: &str) -> String {
    text.replace("VL_EXTENDS_II(32,8,", "doorbell_sign_byte(")
}

/// Leaves the address and the data of a write to a memory unset where there is none: nobody looks at them without it.
fn leave_unset(text: &str) -> String {
    let unset = |line: &str| {
        let line = line.trim_start();
        let (name, rest) = match line.strip_prefix("VL_ZERO_W(").and_then(|rest| rest.split_once(", ")) {
            Some((_, name)) => (name, name.strip_suffix(");").map(|_| "")),
            None => (line, line.strip_suffix(" = 0;").map(|_| "")),
        };
        rest.is_some()
            && ["__Vdlyvval__", "__Vdlyvdim0__", "__Vdlyvlsb__"].iter().any(|kind| name.starts_with(kind))
    };
    text.lines().filter(|line| !unset(line)).flat_map(|line| [line, "\n"]).collect()
}

/// Says to the compiler that what a process waits for seldom comes, but for what is `USUAL`. What is done then is moved out
/// of the way of what every cycle runs through.
fn mark_seldom(text: &str) -> String {
    let mut marked = String::with_capacity(text.len() + text.len() / 16);
    let mut rest = text;
    while let Some(at) = rest.find(" if (") {
        let (before, behind) = rest.split_at(at + " if (".len());
        marked += before;
        let mut open = 1;
        let end = behind.find(|c| {
            open += i32::from(c == '(') - i32::from(c == ')');
            open == 0
        });
        let Some(end) = end else { break };
        let condition = &behind[..end];
        let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let usual = condition.split(word).any(|name| USUAL.iter().any(|usual| name.ends_with(usual)));
        if usual || condition.contains("VL_UNLIKELY") || !behind[end..].starts_with(") {") {
            marked += condition;
        } else {
            marked += &format!("VL_UNLIKELY({condition})");
        }
        rest = &behind[end..];
    }
    marked + rest
}

fn compiled(build: &cc::Build) -> Result<(), String> {
    build.try_compile_intermediates().map(drop).map_err(|error| error.to_string())
}

/// The files in `directory` with this extension, in order.
fn files_of(directory: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let entries =
        fs::read_dir(directory).map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == extension));
    files.sort();
    Ok(files)
}
