/* The parts that the example programs share: an address of this machine, the
   port that a daemon listens on, and the event loop.

   SPDX-License-Identifier: MIT OR Apache-2.0 */

#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "microspdy.h"

/* SIGTERM or SIGINT has come. */
static volatile sig_atomic_t stop_requested;

static inline void
request_stop (int signal_number)
{
  (void) signal_number;
  stop_requested = 1;
}

/* Returns the IPv4 loopback address with a port; 0 lets the system choose. */
static inline struct sockaddr_in
loopback (unsigned int port)
{
  struct sockaddr_in address;

  memset (&address, 0, sizeof (address));
  address.sin_family = AF_INET;
  address.sin_port = htons ((uint16_t) port);
  address.sin_addr.s_addr = htonl (INADDR_LOOPBACK);
  return address;
}

/* Prints the port of a daemon without sessions: its only descriptor is that of
   the listener. */
static inline void
print_port (struct SPDY_Daemon *daemon)
{
  fd_set readable, writable, failed;
  struct sockaddr_in6 address;
  socklen_t length = sizeof (address);
  int descriptor;

  FD_ZERO (&readable);
  FD_ZERO (&writable);
  FD_ZERO (&failed);
  descriptor = SPDY_get_fdset (daemon, &readable, &writable, &failed);
  memset (&address, 0, sizeof (address));
  if (0 != getsockname (descriptor, (struct sockaddr *) &address, &length))
  {
    perror ("getsockname");
    exit (1);
  }
  /* The port has the same place in IPv4 and IPv6 addresses. */
  printf ("port %u\n", (unsigned int) ntohs (address.sin6_port));
  fflush (stdout);
}

/* Waits for one of several daemons, and lets each do its work. */
static inline void
run_once (struct SPDY_Daemon **daemons, int count)
{
  fd_set readable, writable, failed;
  struct timeval wait = { 1, 0 };
  int highest = -1;
  int i;

  FD_ZERO (&readable);
  FD_ZERO (&writable);
  FD_ZERO (&failed);
  for (i = 0; i < count; i++)
  {
    unsigned long long milliseconds;
    int descriptor
      = SPDY_get_fdset (daemons[i], &readable, &writable, &failed);

    if (descriptor > highest)
      highest = descriptor;
    if (SPDY_YES == SPDY_get_timeout (daemons[i], &milliseconds)
        && milliseconds < 1000
        && (time_t) milliseconds * 1000 < wait.tv_sec * 1000000 + wait.tv_usec)
    {
      wait.tv_sec = 0;
      wait.tv_usec = (suseconds_t) milliseconds * 1000;
    }
  }
  if (select (highest + 1, &readable, &writable, &failed, &wait) < 0)
    return;
  for (i = 0; i < count; i++)
    SPDY_run (daemons[i]);
}

/* Runs daemons until SIGTERM or SIGINT, and stops them. */
static inline void
run_until_stopped (struct SPDY_Daemon **daemons, int count)
{
  int i;

  signal (SIGTERM, &request_stop);
  signal (SIGINT, &request_stop);
  while (! stop_requested)
    run_once (daemons, count);
  for (i = 0; i < count; i++)
    SPDY_stop_daemon (daemons[i]);
}

/* Destroys a response and its request after the last byte. */
static inline void
destroy_both (void *cls, struct SPDY_Response *response,
              struct SPDY_Request *request, enum SPDY_RESPONSE_RESULT status,
              bool streamopened)
{
  (void) cls;
  (void) status;
  (void) streamopened;
  SPDY_destroy_response (response);
  SPDY_destroy_request (request);
}

/* Answers a request with a short text. */
static inline void
answer_text (struct SPDY_Request *request, int status, const char *text)
{
  struct SPDY_Response *response
    = SPDY_build_response (status, NULL, SPDY_HTTP_VERSION_1_1, NULL, text,
                           strlen (text));

  if (NULL == response)
    SPDY_destroy_request (request);
  else if (SPDY_YES
           != SPDY_queue_response (request, response, true, false,
                                   &destroy_both, NULL))
  {
    SPDY_destroy_response (response);
    SPDY_destroy_request (request);
  }
}

#endif
