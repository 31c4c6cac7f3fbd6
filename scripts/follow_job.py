"""Shows what a Ray job prints and ends with the job's own exit code: `python scripts/follow_job.py SUBMISSION_ID`.

`ray job submit` would do for the first half, but it answers 1 to every failure and prints the whole log again below it.
The cluster is the one at RAY_ADDRESS.
"""

import asyncio
import logging
import sys
import time

from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

POLL_S = 0.5


async def show(client: JobSubmissionClient, job: str) -> None:
    """Prints the job's lines as they come, until it ends or the connection does."""
    async for text in client.tail_job_logs(job):
        print(text, end="", flush=True)


def ended(client: JobSubmissionClient, job: str) -> JobDetails:
    """Waits until the job is over. The manager that runs the job unblocks this, also when the job's process dies."""
    while not (details := client.get_job_info(job)).status.is_terminal():
        time.sleep(POLL_S)
    return details


def main() -> int:
    """The job's exit code; 1 when it has none, e.g. because it was stopped or could not start."""
    job = sys.argv[1]
    logging.getLogger(JobSubmissionClient.__module__).setLevel(
        logging.WARNING
    )  # the client's own remarks are no lines of the job
    client = JobSubmissionClient()
    asyncio.run(show(client, job))
    details = ended(client, job)
    if details.status == JobStatus.SUCCEEDED:
        return 0
    code = details.driver_exit_code
    if code is None:
        print(f"job {job}: {details.status.value.lower()}: {details.message}", file=sys.stderr)
    return code if code is not None and 0 < code < 256 else 1


if __name__ == "__main__":
    sys.exit(main())
