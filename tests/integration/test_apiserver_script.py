"""The stand-in answers the script as kube-apiserver 1.37.1 does."""

import aiohttp
import pytest

from standins.apiserver.server import ApiServer
from tests.scripts import answers
from tests.scripts import apiserver_script as script


@pytest.fixture
async def transcript():
    async with ApiServer() as api, aiohttp.ClientSession() as session:

        async def compact() -> None:
            api.compact()

        return await script.play(script.Target(session, api.url, compact), script.STEPS)


async def test_every_answer_is_that_of_the_real_one(transcript) -> None:
    wrong = answers.differences(transcript, script.recorded())
    assert not wrong, "\n".join(wrong)


def test_every_step_was_recorded() -> None:
    assert [entry["step"] for entry in script.recorded()] == [step.name for step in script.STEPS]
    assert len({step.name for step in script.STEPS}) == len(script.STEPS)


def test_the_recording_is_written_as_it_is_read() -> None:
    assert script.ANSWERS.read_text(encoding="utf-8") == script.as_recording(script.recorded())
