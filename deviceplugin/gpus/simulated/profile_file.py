"""A profile's file, looked at again and again: a file that was changed is a changed node."""

from pathlib import Path

import structlog

from deviceplugin.errors import ProfileError
from deviceplugin.gpus.api.vendor import Vendor
from deviceplugin.gpus.simulated.profile import Profile, load_profile, shipped_profiles

log = structlog.get_logger(__name__)


class ProfileFile:
    """Reads a profile again when its file has changed. What cannot be used is logged once and passed over.

    Args:
        name_or_file: as `load_profile` takes it; a shipped profile never changes.
        vendor: of the profile so far, which cannot change.
    """

    def __init__(self, name_or_file: str, vendor: Vendor) -> None:
        self._file = None if name_or_file in shipped_profiles() else Path(name_or_file)
        self._vendor = vendor
        self._stamp = self._look()

    def changed(self) -> Profile | None:
        """Return the profile if its file was changed since the last call, and can be used."""
        stamp = self._look()
        if self._file is None or stamp is None or stamp == self._stamp:
            return None
        self._stamp = stamp
        try:
            profile = load_profile(str(self._file))
        except ProfileError as error:
            return self._refuse(str(error))
        if profile.vendor != self._vendor:
            return self._refuse(f"vendor: {profile.vendor.domain}; allowed: {self._vendor.domain} now")
        log.info("the profile was changed", profile=str(self._file))
        return profile

    @staticmethod
    def _refuse(error: str) -> None:
        log.warning("the changed profile cannot be used, the cards stay as they were", error=error)

    def _look(self) -> tuple[int, int, int] | None:
        """Read a key that differs after a change; None while there is no file."""
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
