/* Daemons that stop while another thread runs them, or inside a callback. A
   failing check prints its line and ends the program with 1.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#define _GNU_SOURCE

#include <pthread.h>
#include <time.h>
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

/* The program ends after this many seconds if a stop waits for ever. */
#define PATIENCE 60

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* All of it belongs to the mutex. */
static int opened;
static int closed;
static int left;
static int stopping;
static int quit;

static struct SPDY_Daemon *daemons[2];

static int
get (const int *value)
{
  int now;

  pthread_mutex_lock (&mutex);
  now = *value;
  pthread_mutex_unlock (&mutex);
  return now;
}

static void
add (int *value)
{
  pthread_mutex_lock (&mutex);
  ++*value;
  pthread_cond_broadcast (&changed);
  pthread_mutex_unlock (&mutex);
}

static void
wait_for (const int *value, int least)
{
  pthread_mutex_lock (&mutex);
  while (*value < least)
    pthread_cond_wait (&changed, &mutex);
  pthread_mutex_unlock (&mutex);
}

static void
on_close (void *cls, struct SPDY_Session *session, int by_client)
{
  (void) cls;
  (void) session;
  (void) by_client;
  add (&closed);
}

/* Returns some time after the other thread has begun to stop the daemon. */
static void
linger (void *cls, struct SPDY_Session *session)
{
  const struct timespec time = { 0, 50000000 };

  (void) cls;
  (void) session;
  add (&opened);
  wait_for (&stopping, 1);
  nanosleep (&time, NULL);
  add (&left);
}

static void
count (void *cls, struct SPDY_Session *session)
{
  (void) cls;
  (void) session;
  add (&opened);
}

/* Both callbacks stop the daemon of the other one. */
static void
stop_other (void *cls, struct SPDY_Session *session)
{
  (void) session;
  add (&opened);
  wait_for (&opened, 2);
  SPDY_stop_daemon (daemons[1 - *(const int *) cls]);
  add (&left);
}

static void
stop_own (void *cls, struct SPDY_Session *session)
{
  (void) cls;
  (void) session;
  SPDY_stop_daemon (daemons[0]);
  CHECK (0 == get (&closed));
  add (&left);
}

static struct SPDY_Daemon *
start (SPDY_NewSessionCallback on_session, void *cls, int *client)
{
  struct sockaddr_in address = loopback (0);
  struct SPDY_Daemon *daemon = SPDY_start_daemon (
    0, NULL, NULL, on_session, &on_close, NULL, NULL, cls,
    SPDY_DAEMON_OPTION_SOCK_ADDR, &address, SPDY_DAEMON_OPTION_IO_SUBSYSTEM,
    SPDY_IO_SUBSYSTEM_RAW, SPDY_DAEMON_OPTION_END);
  fd_set readable, writable, failed;
  socklen_t length = sizeof (address);
  int listener;

  CHECK (NULL != daemon);
  FD_ZERO (&readable);
  FD_ZERO (&writable);
  FD_ZERO (&failed);
  listener = SPDY_get_fdset (daemon, &readable, &writable, &failed);
  CHECK (0 == getsockname (listener, (struct sockaddr *) &address, &length));
  *client = socket (AF_INET, SOCK_STREAM, 0);
  CHECK (0 == connect (*client, (struct sockaddr *) &address, length));
  return daemon;
}

static void *
run (void *cls)
{
  while (! get (&quit))
    SPDY_run (cls);
  return NULL;
}

static void
reset_counters (void)
{
  opened = closed = left = stopping = quit = 0;
}

static void
stop_waits_for_a_callback (void)
{
  pthread_t runner;
  int client;

  reset_counters ();
  daemons[0] = start (&linger, NULL, &client);
  CHECK (0 == pthread_create (&runner, NULL, &run, daemons[0]));
  wait_for (&opened, 1);
  add (&stopping);
  SPDY_stop_daemon (daemons[0]);
  CHECK (1 == get (&left));
  CHECK (1 == get (&closed));
  add (&quit);
  pthread_join (runner, NULL);
  CHECK (1 == closed);
  close (client);
}

static void
stop_closes_every_session (void)
{
  pthread_t runner;
  int client;
  int i;

  for (i = 0; i < 300; i++)
  {
    volatile int pause;

    reset_counters ();
    daemons[0] = start (&count, NULL, &client);
    CHECK (0 == pthread_create (&runner, NULL, &run, daemons[0]));
    wait_for (&opened, 1);
    for (pause = 0; pause < i * 37 % 5000; pause++)
      ;
    SPDY_stop_daemon (daemons[0]);
    CHECK (1 == get (&closed));
    add (&quit);
    pthread_join (runner, NULL);
    CHECK (1 == closed);
    close (client);
  }
}

static void
callbacks_stop_each_other (void)
{
  static int numbers[2] = { 0, 1 };
  pthread_t runners[2];
  int clients[2];
  int i;

  reset_counters ();
  for (i = 0; i < 2; i++)
    daemons[i] = start (&stop_other, &numbers[i], &clients[i]);
  for (i = 0; i < 2; i++)
    CHECK (0 == pthread_create (&runners[i], NULL, &run, daemons[i]));
  wait_for (&left, 2);
  wait_for (&closed, 2);
  add (&quit);
  for (i = 0; i < 2; i++)
  {
    pthread_join (runners[i], NULL);
    close (clients[i]);
  }
  CHECK (2 == closed);
}

static void
callback_stops_its_own_daemon (void)
{
  int client;

  reset_counters ();
  daemons[0] = start (&stop_own, NULL, &client);
  while (0 == left)
    SPDY_run (daemons[0]);
  CHECK (1 == closed);
  close (client);
}

int
main (void)
{
  alarm (PATIENCE);
  (SPDY_init) (SPDY_IO_SUBSYSTEM_RAW);
  stop_waits_for_a_callback ();
  stop_closes_every_session ();
  callbacks_stop_each_other ();
  callback_stops_its_own_daemon ();
  SPDY_deinit ();
  return 0;
}
