//! Media types of files, by their names.

use std::path::Path;

/// Returns the value of `Content-Type` for a file with this name. Text is UTF-8.
pub(super) fn content_type(path: &str) -> String {
    let extension = Path::new(path).extension().and_then(|extension| extension.to_str());
    let media_type = by_extension(&extension.unwrap_or_default().to_ascii_lowercase());
    let charset = if media_type.starts_with("text/") { "; charset=utf-8" } else { "" };
    format!("{media_type}{charset}")
}

/// Returns the type that common web servers and browsers use.
fn by_extension(extension: &str) -> &'static str {
    web(extension)
        .or_else(|| media(extension))
        .or_else(|| document(extension))
        .unwrap_or("application/octet-stream")
}

/// Pages, their parts, and data.
fn web(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "html" | "htm" | "shtml" => "text/html",
        "css" => "text/css",
        // RFC 9239.
        "js" | "mjs" | "cjs" | "jsx" => "text/javascript",
        "txt" | "text" | "log" | "conf" | "ini" | "c" | "h" | "cpp" | "py" => "text/plain",
        "md" | "markdown" => "text/markdown",
        "csv" => "text/csv",
        "tsv" => "text/tab-separated-values",
        "xml" | "xsl" | "xslt" | "xsd" => "text/xml",
        "yaml" | "yml" => "text/x-yaml",
        "toml" => "text/x-toml",
        "rs" => "text/x-rust",
        "lua" => "text/x-lua",
        "scss" => "text/x-scss",
        "sass" => "text/x-sass",
        "less" => "text/less",
        "ics" => "text/calendar",
        "vcf" | "vcard" => "text/vcard",
        "vtt" => "text/vtt",
        "json" | "map" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "json5" => "application/json5",
        "jsonld" => "application/ld+json",
        "geojson" => "application/geo+json",
        "webmanifest" => "application/manifest+json",
        "xhtml" => "application/xhtml+xml",
        "atom" => "application/atom+xml",
        "rss" => "application/rss+xml",
        "rdf" => "application/rdf+xml",
        "gpx" => "application/gpx+xml",
        "kml" => "application/vnd.google-earth.kml+xml",
        "kmz" => "application/vnd.google-earth.kmz",
        "wasm" => "application/wasm",
        "woff" => "font/woff",
        "woff2" => "font/woff2",
        "ttf" => "font/ttf",
        "otf" => "font/otf",
        "ttc" => "font/collection",
        "eot" => "application/vnd.ms-fontobject",
        _ => return None,
    })
}

/// Images, sound, video and models.
fn media(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "png" => "image/png",
        "jpg" | "jpeg" | "jpe" | "jfif" => "image/jpeg",
        "gif" => "image/gif",
        "svg" | "svgz" => "image/svg+xml",
        "webp" => "image/webp",
        "avif" => "image/avif",
        "apng" => "image/apng",
        "jxl" => "image/jxl",
        "heic" => "image/heic",
        "heif" => "image/heif",
        "ico" | "cur" => "image/x-icon",
        "bmp" => "image/bmp",
        "tif" | "tiff" => "image/tiff",
        "mp3" => "audio/mpeg",
        "m4a" => "audio/mp4",
        "aac" => "audio/aac",
        "ogg" | "oga" | "opus" => "audio/ogg",
        "wav" => "audio/wav",
        "flac" => "audio/flac",
        "weba" => "audio/webm",
        "mid" | "midi" => "audio/midi",
        "aif" | "aiff" => "audio/aiff",
        "m3u" => "audio/x-mpegurl",
        "m3u8" => "application/vnd.apple.mpegurl",
        "mpd" => "application/dash+xml",
        "mp4" | "m4v" | "mp4v" => "video/mp4",
        "webm" => "video/webm",
        "ogv" => "video/ogg",
        "mov" | "qt" => "video/quicktime",
        "mpeg" | "mpg" | "mpe" => "video/mpeg",
        "ts" | "m2ts" | "mts" => "video/mp2t",
        "3gp" | "3gpp" => "video/3gpp",
        "3g2" => "video/3gpp2",
        "mkv" => "video/x-matroska",
        "avi" => "video/x-msvideo",
        "flv" => "video/x-flv",
        "wmv" => "video/x-ms-wmv",
        "gltf" => "model/gltf+json",
        "glb" => "model/gltf-binary",
        "stl" => "model/stl",
        "obj" => "model/obj",
        _ => return None,
    })
}

/// Documents, archives and certificates.
fn document(extension: &str) -> Option<&'static str> {
    Some(match extension {
        "pdf" => "application/pdf",
        "epub" => "application/epub+zip",
        "rtf" => "application/rtf",
        "ps" | "eps" | "ai" => "application/postscript",
        "tex" => "application/x-tex",
        "doc" | "dot" => "application/msword",
        "xls" => "application/vnd.ms-excel",
        "ppt" => "application/vnd.ms-powerpoint",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "odt" => "application/vnd.oasis.opendocument.text",
        "ods" => "application/vnd.oasis.opendocument.spreadsheet",
        "odp" => "application/vnd.oasis.opendocument.presentation",
        "odg" => "application/vnd.oasis.opendocument.graphics",
        "eml" => "message/rfc822",
        "zip" => "application/zip",
        "gz" | "tgz" => "application/gzip",
        "bz2" => "application/x-bzip2",
        "xz" => "application/x-xz",
        "zst" => "application/zstd",
        "tar" => "application/x-tar",
        "7z" => "application/x-7z-compressed",
        "rar" => "application/x-rar-compressed",
        "jar" | "war" | "ear" => "application/java-archive",
        "apk" => "application/vnd.android.package-archive",
        "torrent" => "application/x-bittorrent",
        "xpi" => "application/x-xpinstall",
        "sh" => "application/x-sh",
        "sql" => "application/x-sql",
        "swf" => "application/x-shockwave-flash",
        "asc" | "sig" => "application/pgp-signature",
        "pem" | "crt" | "cer" | "der" => "application/x-x509-ca-cert",
        "p12" | "pfx" => "application/x-pkcs12",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_type_follows_from_the_last_extension() {
        for (path, expected) in [
            ("a.html", "text/html; charset=utf-8"),
            ("A/B.HTML", "text/html; charset=utf-8"),
            ("app.min.js", "text/javascript; charset=utf-8"),
            ("module.mjs", "text/javascript; charset=utf-8"),
            ("data.json", "application/json"),
            ("app.js.map", "application/json"),
            ("manifest.webmanifest", "application/manifest+json"),
            ("code.wasm", "application/wasm"),
            ("font.woff2", "font/woff2"),
            ("image.svg", "image/svg+xml"),
            ("photo.JPG", "image/jpeg"),
            ("film.mp4", "video/mp4"),
            ("paper.pdf", "application/pdf"),
            ("site.tar.gz", "application/gzip"),
        ] {
            assert_eq!(content_type(path), expected, "{path}");
        }
    }

    #[test]
    fn files_without_a_known_extension_are_octets() {
        for path in ["", "README", "html", "a.", "dir.html/file", ".html", "a.unknown", "a.ü"] {
            assert_eq!(content_type(path), "application/octet-stream", "{path}");
        }
    }
}
