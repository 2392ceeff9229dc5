"""``fedvlm site prune``: remove old lines of a site's log, or let sums go over other sites."""

from __future__ import annotations

import time
from argparse import Namespace

from fedvlm.console.screen import say
from fedvlm.core import files
from fedvlm.core.files import user_path
from fedvlm.distributed.site_yaml import read_site_yaml
from fedvlm.distributed.sums.site import READ
from fedvlm.job.sites.messages import LOG, OWNER, SUMS_ANEW, MessageLog, prune_log
from fedvlm.job.sites.resident import serving

DAY = 86400.0  # seconds


def prune(args: Namespace) -> int:
    """Remove what the owner says; return the exit code.

    Raises:
        ConfigError: the rules are wrong, or the site is being served.
        DataError: the log was changed, or a file cannot be written.
    """
    owner = read_site_yaml(user_path(args.opts[0]))
    states = owner.states
    with serving(owner):
        if args.sums:
            read, log = states / READ, MessageLog(states)
            if read.is_file():
                with files.explain_errors(read):
                    log.enter(OWNER, {"kind": SUMS_ANEW})
                    read.unlink()
                say("the next secure sums may be over other sites or clients than those so far, or "
                    "under other weights: whoever has both sums learns the difference")
            else:
                say("this site has not helped to read a secure sum")
        if args.days is not None:
            count = prune_log(states / LOG, time.time() - DAY * args.days)
            say(f"{count} lines of {states / LOG} were removed" if count else
                f"no line was removed: in {states / LOG} no whole run, up to a start of the site, "
                f"is older than {args.days} days")
            say(f"fedvlm site record {args.opts[0]} prints the last seal: keep it instead of older "
                "ones")
    return 0
