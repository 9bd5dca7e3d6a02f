//! `weald import oci`.

use crate::commands::build::{json, summary};
use crate::commands::store::add;
use crate::help::Help;
use crate::open_store::{open_dir, silence_engine};
use crate::output::Output;
use crate::pack::{DisplayArgs, PackArgs, ResourceArgs};
use crate::progress::count;
use crate::shape::{INPUT, OUTPUT};
use crate::status::exit_code;
use crate::writer_name::writer_name;
use anyhow::bail;
use clap::{Args, ValueHint};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;
use weald_builder::{BuildOptions, Observer, StoreTarget};
use weald_format::{ErrorKind, Result};
use weald_ingest::{OciChoice, OciImport, OciPlatform, import_oci};
use weald_io::{OutputFile, TargetKind};
use weald_store::WriteOptions;
use weald_vfs::shown;

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "LAYOUT is a directory in the OCI image layout (skopeo copy SOURCE oci:DIR:TAG, umoci, \
         buildah push), or a tar archive of one. The output of docker save and podman save and a \
         directory of skopeo (dir:DIR) are accepted, too. Weald reads no registry: skopeo fetches \
         from one.",
        "The layers become one tree: whiteouts remove what lower layers have, opaque marks empty \
         a directory. Symlinks of a layer lead to its later members, never out of the image. Files \
         that an upper layer removes are not stored. The other options are those of weald build.",
        "Weald verifies the digests of manifest, configuration and layers, compressed and \
         uncompressed, before the image appears. A layer may have 1 GiB when it is decompressed, \
         or 256 times its compressed size.",
        "The image holds the files. --config writes the configuration (environment, command, \
         user) to a file, and weald export oci --config takes it back.",
    ],
    examples: &[
        (
            "Import an image that skopeo has fetched",
            "weald import oci layout:v1 root.weald",
        ),
        (
            "Import it into a store, beside its earlier versions",
            "weald import oci layout:v1 /srv/store:debian-1",
        ),
        (
            "Import what docker save or podman save has written",
            "weald import oci --config saved.json saved.tar saved.weald",
        ),
    ],
    exit_status: &[
        ("0", "The image is complete."),
        (
            "1",
            "The image is complete except for members that Weald cannot store; standard error \
             names each.",
        ),
        ("2", "The command failed; there is no new image."),
    ],
};

/// Build an image from the layers of an OCI image
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct OciArgs {
    /// Layout directory or archive, with the tag or the digest of the manifest if it has several
    #[arg(value_name = "LAYOUT[:TAG]", value_hint = ValueHint::AnyPath)]
    layout: PathBuf,
    /// Image file to write, or STORE:NAME
    #[arg(value_hint = ValueHint::FilePath)]
    image: PathBuf,
    /// Platform of the image, as in linux/arm64 (default: that of this machine)
    #[arg(
        long,
        value_name = "OS/ARCHITECTURE",
        value_parser = OciPlatform::parse,
        help_heading = INPUT
    )]
    platform: Option<OciPlatform>,
    /// Write the configuration of the image to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = OUTPUT)]
    config: Option<PathBuf>,
    /// Replace the image and the file of --config if they exist
    #[arg(short, long, help_heading = OUTPUT)]
    force: bool,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    display: DisplayArgs,
    #[command(flatten)]
    resources: ResourceArgs,
}

/// Splits LAYOUT:TAG. A path that exists has no tag; else the shortest part before a colon that
/// exists is the layout, because tags of `docker save` have colons of their own.
fn layout_and_tag(argument: &Path) -> anyhow::Result<(PathBuf, Option<String>)> {
    if argument.symlink_metadata().is_ok() {
        return Ok((argument.to_owned(), None));
    }
    let text = argument.as_os_str().as_bytes();
    let colons = text.iter().enumerate().filter(|(_, byte)| **byte == b':');
    for (at, _) in colons {
        let (layout, tag) = text.split_at(at);
        let layout = Path::new(OsStr::from_bytes(layout));
        if layout.symlink_metadata().is_ok() {
            let tag = std::str::from_utf8(tag.get(1..).unwrap_or_default());
            let Ok(tag) = tag else {
                bail!("{}: the tag is not UTF-8, as tags are", shown(text));
            };
            return Ok((layout.to_owned(), Some(tag.to_owned())));
        }
    }
    let is_remote = [&b"docker://"[..], b"containers-storage:", b"docker-daemon:"];
    if is_remote.iter().any(|prefix| text.starts_with(prefix)) {
        bail!(
            "{0}: Weald reads layouts and archives: 'skopeo copy {0} oci:layout:tag' makes one, \
             and 'weald import oci layout:tag IMAGE' reads it",
            shown(text)
        );
    }
    for prefix in ["oci:", "oci-archive:", "docker-archive:", "dir:"] {
        if let Some(rest) = text.strip_prefix(prefix.as_bytes()) {
            bail!(
                "{}: no such file or directory: leave '{prefix}' out, and write {}",
                shown(text),
                shown(rest)
            );
        }
    }
    bail!(
        "{}: no such file or directory: expected an OCI layout, or the output of docker save, \
         with or without :TAG",
        shown(text)
    )
}

/// An import that is ready to run.
struct Import<'a> {
    args: &'a OciArgs,
    layout: PathBuf,
    choice: OciChoice,
    options: BuildOptions,
}

/// Runs the command.
pub(super) fn run(args: &OciArgs) -> anyhow::Result<ExitCode> {
    let (layout, tag) = layout_and_tag(&args.layout)?;
    let options = args.pack.options(&args.resources)?;
    options.validate()?;
    if let Some(config) = args.config.as_deref().filter(|_| !args.force) {
        refuse_existing(config)?;
    }
    let import = Import {
        args,
        layout,
        choice: OciChoice {
            tag,
            platform: args.platform.clone(),
        },
        options,
    };
    if weald_store::is_store(&args.image) {
        let store = shown(args.image.as_os_str().as_bytes());
        bail!("{store}: names a store: add the name of the new image, as in {store}:NAME");
    }
    weald_sys::want_large_pages();
    match weald_store::split(&args.image) {
        Some((dir, name)) => import.add_to_store(&dir, &name),
        None => import.make_file(),
    }
}

impl Import<'_> {
    fn read(
        &self,
        target: &Path,
        options: &BuildOptions,
        observer: &dyn Observer,
    ) -> Result<OciImport> {
        import_oci(
            &self.layout,
            &self.choice,
            target,
            self.args.force,
            options,
            observer,
        )
    }

    fn make_file(&self) -> anyhow::Result<ExitCode> {
        let args = self.args;
        let display = args.display.display()?;
        let start = Instant::now();
        let imported = self.read(&args.image, &self.options, &display);
        display.finish();
        let imported = match imported {
            Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
            other => other?,
        };
        self.write_config(&imported)?;
        let mut output = Output::new();
        if args.display.json {
            let mut object = json(&imported.report, start.elapsed());
            object.insert("layer_count".into(), imported.layer_count.into());
            output.json(&object.into())?;
        } else if !args.display.quiet {
            output.text(&summary(&imported.report, start.elapsed()))?;
            let layers = count(imported.layer_count as u64);
            writeln!(output, "layers        {layers}, all digests verified")?;
        }
        output.finish()?;
        Ok(exit_code(imported.report.problem_count))
    }

    fn add_to_store(&self, dir: &Path, name: &str) -> anyhow::Result<ExitCode> {
        silence_engine();
        let writer_name = writer_name("import oci");
        let target = StoreTarget {
            writer: open_dir(dir)?.write(WriteOptions::new(writer_name))?,
            dir,
            name,
            like: None,
        };
        let display = self.args.display.display()?;
        let start = Instant::now();
        let mut read = None;
        let added = add::add_through_file(target, &self.options, &display, |whole, quick| {
            let imported = self.read(whole, quick, &display)?;
            Ok(read.insert(imported).report.problem_count)
        });
        display.finish();
        let added = added?;
        if let Some(imported) = &read {
            self.write_config(imported)?;
        }
        add::print(&self.args.display, name, &added, start)?;
        Ok(exit_code(added.report.problem_count))
    }

    fn write_config(&self, imported: &OciImport) -> anyhow::Result<()> {
        let Some(path) = &self.args.config else {
            return Ok(());
        };
        let mut file = OutputFile::create(path, TargetKind::File)?;
        file.write_all(&imported.config)?;
        Ok(file.commit(self.args.force)?)
    }
}

fn refuse_existing(path: &Path) -> anyhow::Result<()> {
    match weald_io::refuse_existing(path) {
        Err(error) => {
            let path = shown(path.as_os_str().as_bytes());
            bail!("{path}: {error}; --force replaces it")
        }
        Ok(()) => Ok(()),
    }
}
