"""Lists of projects, SKUs and images."""

from starlette.responses import Response

from control_plane.web.actions import by_scope
from control_plane.web.pages.project_actions import CREATING
from control_plane.web.visits import Visit


async def show_projects(visit: Visit) -> Response:
    listed = await visit.get("projects", cursor=visit.query("cursor"))
    return visit.render(
        "projects.html",
        projects=listed["items"],
        next_cursor=listed["next_cursor"],
        creating=CREATING,
        allowed=by_scope(visit, *CREATING, scope="projects:write"),
    )


async def show_skus(visit: Visit) -> Response:
    listed = await visit.get("skus", cursor=visit.query("cursor"), at=visit.at)
    return visit.render("skus.html", skus=listed["items"], next_cursor=listed["next_cursor"])


async def show_images(visit: Visit) -> Response:
    listed = await visit.get("images", cursor=visit.query("cursor"), at=visit.at)
    return visit.render("images.html", images=listed["items"], next_cursor=listed["next_cursor"])
