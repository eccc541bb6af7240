"""The project's links in the metadata of a release: built from the address in KERNMANTLE_URL, absent without it."""

import os

from hatchling.metadata.plugin.interface import MetadataHookInterface

PATHS = {
    "Source": "",
    "Documentation": "/tree/main/docs",
    "Changelog": "/blob/main/CHANGELOG.md",
    "Issues": "/issues",
}


class Links(MetadataHookInterface):
    """Fills ``[project.urls]``."""

    def update(self, metadata):
        """Hatchling calls it with the table ``[project]``."""
        home = os.environ.get("KERNMANTLE_URL", "").rstrip("/")
        metadata["urls"] = {name: home + path for name, path in PATHS.items()} if home else {}
