"""Download files from their official source, and keep them only if they have the published md5."""

import hashlib
import shutil
import tarfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

from pfge.lab.data.base import DataError
from pfge.storage.files import open_regular

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def check_md5(path: Path, expected: str) -> None:
    """Raise DataError unless the file has the published md5."""
    found = _md5(path)
    if found != expected:
        raise DataError(
            f"{path} must have the published md5 {expected}, found {found}; "
            "delete the file and fetch it again (--download)"
        )


def fetch(url: str, target: Path, md5: str) -> None:
    """Download a file; `target` appears only once it is whole and its md5 is right."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, because a rename is atomic only within a file system.
        with TemporaryDirectory(dir=target.parent, prefix=".download-") as scratch:
            part = Path(scratch) / target.name
            _transfer(url, part, md5)
            part.replace(target)
    except (OSError, HTTPException) as error:
        raise DataError(_failed(url, target.parent, error)) from error


def fetch_folder(url: str, folder: Path, md5: str) -> None:
    """Download a tar archive of one folder and put that folder's files into `folder`.

    Args:
        url: The archive; its files must be in a folder with the name of `folder`.
        folder: Where the files are to be; files of the same names are replaced.
        md5: The published md5 of the archive.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent, prefix=".download-") as scratch:
            archive_path = Path(scratch) / "archive"
            _transfer(url, archive_path, md5)
            with tarfile.open(archive_path) as archive:
                archive.extractall(scratch, filter="data")
            for file in sorted((Path(scratch) / folder.name).iterdir()):
                file.replace(folder / file.name)
    except (OSError, HTTPException, tarfile.TarError) as error:
        raise DataError(_failed(url, folder, error)) from error


def _transfer(url: str, target: Path, md5: str) -> None:
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as source, target.open("wb") as file:
        shutil.copyfileobj(source, file, _BLOCK)
    found = _md5(target)
    if found != md5:
        raise DataError(f"{url} must have the published md5 {md5}, found {found}; try again later")


def _failed(url: str, folder: Path, error: Exception) -> str:
    return f"could not fetch {url}: {error}; fetch it by other means and put its files into {folder}"


def _md5(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
