# Finds Clp, the COIN-OR linear programming solver, which has no CMake files of its own; defines the target Clp::Clp.
find_path(Clp_INCLUDE_DIR ClpSimplex.hpp PATH_SUFFIXES coin coin-or)
find_library(Clp_LIBRARY Clp)
find_library(Clp_CoinUtils_LIBRARY CoinUtils)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Clp REQUIRED_VARS Clp_LIBRARY Clp_CoinUtils_LIBRARY Clp_INCLUDE_DIR
                                  REASON_FAILURE_MESSAGE "install coinor-libclp-dev or its equivalent")
mark_as_advanced(Clp_INCLUDE_DIR Clp_LIBRARY Clp_CoinUtils_LIBRARY)
if(Clp_FOUND AND NOT TARGET Clp::Clp)
  add_library(Clp::Clp INTERFACE IMPORTED)
  set_target_properties(Clp::Clp PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${Clp_INCLUDE_DIR}"
    INTERFACE_LINK_LIBRARIES "${Clp_LIBRARY};${Clp_CoinUtils_LIBRARY}")
endif()
