//! `weald export oci`.

use crate::help::Help;
use crate::json::{Object, put_name};
use crate::looks::Looks;
use crate::open::{SourceArgs, keep_private, thread_count};
use crate::output::Output;
use crate::pack::DisplayArgs;
use crate::progress::{Display, bytes};
use crate::shape::{INPUT, OUTPUT};
use crate::status::exit_code;
use anyhow::{Context, bail};
use clap::{Args, ValueHint};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weald_export::{ExtractObserver, TarOptions, TarReport, write_tar};
use weald_format::{Error, ErrorKind, Result};
use weald_ingest::OciPlatform;
use weald_vfs::shown;
use weald_views::oci::{Compression, OciOptions, OciReport, Platform, export_layout};

/// Sections of the help.
pub const HELP: Help = Help {
    lists: &[],
    notes: &[
        "LAYOUT is a directory in the OCI image layout. Weald makes it if it is missing, and adds \
         to the images that it has. The program skopeo copies from there to a registry, to an \
         archive or into the storage of podman.",
        "The image has one layer with all files. The same image, configuration and options give \
         the same digests. Files with holes are sparse members in GNU's format 1.0, which podman, \
         docker, skopeo and umoci read.",
        "--config takes the configuration that weald import oci --config or skopeo inspect \
         --config --raw has written. Its layers and history are replaced; the rest is kept.",
        "Sockets, and names that begin with '.wh.', have no form in a layer: Weald leaves them \
         out and reports them.",
    ],
    examples: &[
        (
            "Export an image of a store",
            "weald export oci /srv/store:forest container:v1",
        ),
        (
            "Export it with the command and environment of another image",
            "weald export oci --config config.json forest.weald container:v2",
        ),
        (
            "Compress the layer by zstd",
            "weald export oci --compress zstd:12 forest.weald container:v3",
        ),
    ],
    exit_status: &[
        ("0", "The image is in the layout."),
        (
            "1",
            "The image is in the layout without some entries; standard error names each.",
        ),
        ("2", "The command failed; the layout is as it was."),
    ],
};

/// Write an image as an OCI image of one layer
#[derive(Args, Debug)]
#[command(after_help = HELP.short(), after_long_help = HELP.long())]
pub(super) struct OciArgs {
    #[command(flatten)]
    image: SourceArgs,
    /// Layout directory, with the tag of the new image (default: latest)
    #[arg(value_name = "LAYOUT[:TAG]", value_hint = ValueHint::DirPath)]
    layout: PathBuf,
    /// Configuration of the image: environment, command, user
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = INPUT)]
    config: Option<PathBuf>,
    /// Platform of the image, as in linux/arm64 (default: that of --config, or of this machine)
    #[arg(
        long,
        value_name = "OS/ARCHITECTURE",
        value_parser = OciPlatform::parse,
        help_heading = OUTPUT
    )]
    platform: Option<OciPlatform>,
    /// Compression of the layer: none, gzip or zstd, with a level as in zstd:12
    #[arg(
        long,
        value_name = "CODEC",
        default_value = "gzip",
        value_parser = compression,
        help_heading = OUTPUT
    )]
    compress: Compression,
    /// Replace the image that has the tag
    #[arg(short, long, help_heading = OUTPUT)]
    force: bool,
    #[command(flatten)]
    display: DisplayArgs,
}

/// Parses `none`, `gzip[:LEVEL]` or `zstd[:LEVEL]`.
fn compression(text: &str) -> std::result::Result<Compression, String> {
    let (name, level) = match text.split_once(':') {
        Some((name, level)) => (name, Some(level)),
        None => (text, None),
    };
    let level = |default: i32, max: i32| match level.map(str::parse) {
        None => Ok(default),
        Some(Ok(level)) if (1..=max).contains(&level) => Ok(level),
        Some(_) => Err(format!("{name} has the levels 1 to {max}")),
    };
    match name {
        "none" if text == name => Ok(Compression::None),
        "gzip" => Ok(Compression::Gzip(level(6, 9)?.unsigned_abs())),
        "zstd" => Ok(Compression::Zstd(level(3, 19)?)),
        _ => Err("expected none, gzip, gzip:1 to gzip:9, zstd, or zstd:1 to zstd:19".to_owned()),
    }
}

/// Splits LAYOUT:TAG at its last colon. A directory that exists has no tag.
fn layout_and_tag(argument: &Path) -> anyhow::Result<(PathBuf, String)> {
    let text = argument.as_os_str().as_bytes();
    let colon = text.iter().rposition(|&byte| byte == b':');
    let parts = colon.map(|at| text.split_at(at));
    let tag = parts.map(|(_, tag)| std::str::from_utf8(tag.get(1..).unwrap_or_default()));
    match (parts, tag) {
        (Some((b"", _)), _) => bail!("{}: expected LAYOUT:TAG", shown(text)),
        (Some(_), Some(Err(_))) => bail!("{}: the tag is not UTF-8", shown(text)),
        (Some((dir, _)), Some(Ok(tag))) if !tag.contains('/') && !argument.is_dir() => {
            Ok((PathBuf::from(OsStr::from_bytes(dir)), tag.to_owned()))
        }
        _ => Ok((argument.to_owned(), "latest".to_owned())),
    }
}

fn platform_of(platform: &OciPlatform) -> Platform {
    Platform {
        os: platform.os.clone(),
        architecture: platform.architecture.clone(),
        variant: platform.variant.clone(),
    }
}

/// Runs the command.
pub(super) fn run(args: &OciArgs) -> anyhow::Result<ExitCode> {
    keep_private(&args.image.image);
    let (layout, tag) = layout_and_tag(&args.layout)?;
    let config = args.config.as_deref().map(read_config).transpose()?;
    let options = OciOptions {
        tag,
        compression: args.compress,
        platform: args.platform.as_ref().map(platform_of),
        default_platform: platform_of(&OciPlatform::linux_on(std::env::consts::ARCH)),
        config,
        overwrite: args.force,
    };
    let tar_options = TarOptions {
        is_layer: true,
        temp_dir: std::env::temp_dir(),
        ..TarOptions::default()
    };
    let source = args
        .image
        .open_for_reading(&Looks::everything(), thread_count(0))?;
    let root = source.directory()?;
    let display = args.display.display()?;
    let exported = export_layout(&layout, &options, |out| {
        let report = write_tar(
            &source,
            root.clone(),
            &tar_options,
            out,
            &Reported(&display),
        )?;
        match report.problem_count {
            0 => Ok(report),
            _ => Err(Error::invalid(
                "the image is damaged, so that nothing was exported: 'weald check' names all that \
                 is damaged",
            )),
        }
    });
    display.finish();
    let (report, tar) = match exported {
        Err(error) if error.kind() == ErrorKind::Busy => bail!("{error}; --force replaces it"),
        other => other?,
    };
    print(args, &layout, &options.tag, &report, &tar)?;
    Ok(exit_code(tar.left_out_count))
}

/// Reports what a layer cannot hold, too.
struct Reported<'a>(&'a Display);

impl ExtractObserver for Reported<'_> {
    fn problem(&self, path: &[u8], error: &Error) {
        ExtractObserver::problem(self.0, path, error);
    }

    fn left_out(&self, path: &[u8], why: &Error) {
        ExtractObserver::problem(self.0, path, why);
    }

    fn is_cancelled(&self) -> bool {
        ExtractObserver::is_cancelled(self.0)
    }
}

fn read_config(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = || shown(path.as_os_str().as_bytes());
    let read = || -> Result<Vec<u8>> {
        let failed = |e| Error::io("cannot be read", e);
        let len = std::fs::metadata(path).map_err(failed)?.len();
        if len > weald_views::oci::DOCUMENT_LEN_MAX {
            Err(Error::limit(format!(
                "{len} bytes: expected a configuration of OCI"
            )))
        } else {
            let bytes = std::fs::read(path).map_err(failed)?;
            weald_views::oci::check_config(&bytes).map(|()| bytes)
        }
    };
    read().with_context(shown)
}

fn print(
    args: &OciArgs,
    layout: &Path,
    tag: &str,
    report: &OciReport,
    tar: &TarReport,
) -> anyhow::Result<()> {
    let mut output = Output::new();
    let digests = [
        ("manifest_digest", &report.manifest_digest),
        ("config_digest", &report.config_digest),
        ("layer_digest", &report.layer_digest),
        ("diff_id", &report.diff_id),
    ];
    if args.display.json {
        let mut object = Object::new();
        put_name(&mut object, "layout", layout.as_os_str().as_bytes());
        object.insert("tag".into(), tag.into());
        for (key, digest) in digests {
            object.insert(key.into(), digest.as_str().into());
        }
        object.insert("layer_len".into(), report.layer_len.into());
        object.insert("plain_len".into(), report.plain_len.into());
        object.insert("left_out_count".into(), tar.left_out_count.into());
        output.json(&object.into())?;
    } else if !args.display.quiet {
        let layout = shown(layout.as_os_str().as_bytes());
        writeln!(output, "image     {layout}:{tag}")?;
        writeln!(output, "manifest  {}", report.manifest_digest)?;
        writeln!(output, "config    {}", report.config_digest)?;
        writeln!(
            output,
            "layer     {}, {} ({} uncompressed)",
            report.layer_digest,
            bytes(report.layer_len),
            bytes(report.plain_len)
        )?;
    }
    output.finish()?;
    Ok(())
}
