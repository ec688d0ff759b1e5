/* A daemon that cannot accept: the process has no descriptor left. The listener
   leaves the sets of select for some time. A failing check prints its line and
   ends the program with 1.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#define _GNU_SOURCE

#include <sys/resource.h>
#include <unistd.h>

#include "../../examples/example.h"

#define CHECK(condition)                                             \
  do                                                                 \
  {                                                                  \
    if (! (condition))                                               \
    {                                                                \
      fprintf (stderr, "line %d: %s\n", __LINE__, #condition);       \
      exit (1);                                                      \
    }                                                                \
  }                                                                  \
  while (0)

/* A pause that has ended before it was seen is no fault. */
#define ATTEMPTS 100

static int opened;

static void
on_session (void *cls, struct SPDY_Session *session)
{
  (void) cls;
  (void) session;
  opened++;
}

/* Tells whether select would wait for the listener. */
static bool
listens (struct SPDY_Daemon *daemon, int listener)
{
  fd_set readable, writable, failed;

  FD_ZERO (&readable);
  FD_ZERO (&writable);
  FD_ZERO (&failed);
  SPDY_get_fdset (daemon, &readable, &writable, &failed);
  return FD_ISSET (listener, &readable);
}

static void
limit_descriptors (rlim_t count)
{
  struct rlimit limit;

  CHECK (0 == getrlimit (RLIMIT_NOFILE, &limit));
  limit.rlim_cur = count;
  CHECK (0 == setrlimit (RLIMIT_NOFILE, &limit));
}

int
main (void)
{
  struct sockaddr_in address = loopback (0);
  socklen_t length = sizeof (address);
  struct SPDY_Daemon *daemon;
  fd_set readable, writable, failed;
  unsigned long long milliseconds;
  struct rlimit before;
  bool paused = false;
  int listener, client, next, i;

  (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW);
  daemon = SPDY_start_daemon (
    0, NULL, NULL, &on_session, NULL, NULL, NULL, NULL,
    SPDY_DAEMON_OPTION_SOCK_ADDR, &address, SPDY_DAEMON_OPTION_IO_SUBSYSTEM,
    SPDY_IO_SUBSYSTEM_RAW, SPDY_DAEMON_OPTION_END);
  CHECK (NULL != daemon);
  FD_ZERO (&readable);
  FD_ZERO (&writable);
  FD_ZERO (&failed);
  listener = SPDY_get_fdset (daemon, &readable, &writable, &failed);
  CHECK (0 == getsockname (listener, (struct sockaddr *) &address, &length));
  client = socket (AF_INET, SOCK_STREAM, 0);
  CHECK (0 == connect (client, (struct sockaddr *) &address, length));
  CHECK (SPDY_NO == SPDY_get_timeout (daemon, &milliseconds));

  CHECK (0 == getrlimit (RLIMIT_NOFILE, &before));
  /* The lowest free descriptor is the first that the limit excludes. */
  next = dup (client);
  CHECK (0 <= next && 0 == close (next));
  limit_descriptors ((rlim_t) next);
  for (i = 0; i < ATTEMPTS && ! paused; i++)
  {
    SPDY_run (daemon);
    paused = ! listens (daemon, listener)
             && SPDY_YES == SPDY_get_timeout (daemon, &milliseconds)
             && milliseconds <= 100;
  }
  CHECK (paused);
  CHECK (0 == opened);

  limit_descriptors (before.rlim_cur);
  while (! listens (daemon, listener))
    if (SPDY_YES == SPDY_get_timeout (daemon, &milliseconds))
      usleep ((useconds_t) milliseconds * 1000);
  SPDY_run (daemon);
  CHECK (1 == opened);
  close (client);
  SPDY_stop_daemon (daemon);
  SPDY_deinit ();
  return 0;
}
