"""Contents of the wheel, which pyproject.toml cannot express: `alembic/` is installed as `control_plane/migrations`.

The packages in `control_plane/web/static/packages` are installed by the set-up of `./dev`, and are not in git.
`./dev check package` builds, installs and starts the result.
"""

from setuptools import find_packages, setup

PRODUCT = ("control_plane", "events", "node_agent", "read_models", "tasks")

setup(
    packages=[
        *find_packages(include=[name for each in PRODUCT for name in (each, f"{each}.*")]),
        "control_plane.migrations",
    ],
    package_dir={"control_plane.migrations": "alembic"},
    package_data={
        **{each: ["py.typed"] for each in PRODUCT},
        "control_plane.migrations": ["versions/*.py", "sql/**/*.sql"],
        "control_plane.web": ["static/*", "static/packages/**/*", "templates/*.html"],
        "node_agent.lab.initramfs": ["files/*"],
        "node_agent.lab.nested": ["files/*"],
    },
    include_package_data=False,
)
